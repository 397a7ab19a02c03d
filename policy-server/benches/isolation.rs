//! The effect of a policy that loops until its timeout on other policies, of 64 requests at once to such a policy, of a policy that
//! takes all the memory that it gets, and of an experiment on its live policy: the ratio of the p99 latency with the policy or
//! experiment to the p99 latency without it. The two are measured alternately in one run, at about 1,500 requests per second, a
//! load at which the CPUs have idle time.
//!
//! As root, the policy that takes memory runs in a policy server with a memory limit of 512 MiB, as in a container. The benchmark
//! fails if the kernel ends a process because of the limit.
//!
//! `cargo bench -p policy-server --bench isolation`. Variables: `PROVISO_BENCH_ROUNDS` (default 9),
//! `PROVISO_BENCH_CONNECTIONS` (8), `PROVISO_BENCH_PAUSE_MS` (5), the pause of a client between an answer and its next request, and
//! `PROVISO_BENCH_ONLY`, a part of the names of the measurements to run.

#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, rounds numbers, may panic, and uses a part of shared modules"
)]

#[path = "isolation/cgroup.rs"]
mod cgroup;
#[path = "http/load.rs"]
mod load;
#[path = "http/server.rs"]
mod server;

use std::path::Path;
use std::time::Duration;

use cgroup::Cgroup;
use load::Load;
use serde_json::{Value, json};
use server::{Server, env_number, example, median};

/// The duration of each of the two measurements of a round.
const HALF: Duration = Duration::from_secs(2);

/// A waPC module that accepts its settings and never answers a review.
const LOOP: &str = r#"(module
    (import "wapc" "__guest_response" (func $respond (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "{\"valid\":true}")
    (func (export "__guest_call") (param $operation_length i32) (param i32) (result i32)
        (if (i32.eq (local.get $operation_length) (i32.const 17))
            (then (call $respond (i32.const 0) (i32.const 14)))
            (else (loop $again (br $again))))
        (i32.const 1)))"#;

/// Prints the ratio of two measurements, which are repeated in turn.
type Print<'a> = &'a dyn Fn(&str, &dyn Fn() -> f64, &dyn Fn() -> f64);

/// The number of requests at once to the policy that loops, and to the policy that takes memory.
const MANY: usize = 64;
/// The memory limit of the policy server beside the policy that takes memory, in bytes.
const CONTAINER: u64 = 512 << 20;

/// A waPC module that accepts its settings. For a review, it takes all the memory that it gets, writes to it, and keeps it until
/// its timeout.
const GREEDY: &str = r#"(module
    (import "wapc" "__guest_response" (func $respond (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "{\"valid\":true}")
    (func (export "__guest_call") (param $operation_length i32) (param i32) (result i32)
        (if (i32.eq (local.get $operation_length) (i32.const 17))
            (then (call $respond (i32.const 0) (i32.const 14)))
            (else
                (loop $again
                    (if (i32.ne (memory.grow (i32.const 16)) (i32.const -1))
                        (then (memory.fill
                            (i32.shl (i32.sub (memory.size) (i32.const 16)) (i32.const 16))
                            (i32.const 1) (i32.const 0x100000))))
                    (br $again))))
        (i32.const 1)))"#;

fn main() {
    // `cargo test --benches` only checks that the benchmark starts.
    let (rounds, half) = if std::env::args().any(|argument| argument == "--bench") {
        (env_number("PROVISO_BENCH_ROUNDS", 9), HALF)
    } else {
        (1, Duration::from_millis(200))
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    prepare(folder.path());
    let server = Server::policy_server(Path::new(env!("CARGO_BIN_EXE_policy-server")), folder.path());
    let mut load = Load::new(folder.path(), server::review(), env_number("PROVISO_BENCH_CONNECTIONS", 8));
    load.pause = Duration::from_millis(env_number("PROVISO_BENCH_PAUSE_MS", 5) as u64);
    let path = |policy: &str| format!("/validate/cluster.{policy}");
    let p99 = |policy: &str| load.run(&server.address, &path(policy), half).p99().as_secs_f64() * 1e6;
    let p99_alone = |policy: &str| {
        server.until_idle();
        p99(policy)
    };
    for policy in ["registries", "previewed", "beside-a-loop", "limit"] {
        load.until_allowed(&server.address, &path(policy));
    }
    for looping in ["loop", "rego-loop"] {
        load.until(&server.address, &path(looping), "exceeded the allowed execution time");
    }
    let only = std::env::var("PROVISO_BENCH_ONLY").unwrap_or_default();
    let print = |name: &str, with: &dyn Fn() -> f64, without: &dyn Fn() -> f64| {
        if !name.contains(&only) {
            return;
        }
        let pairs: Vec<_> = (0..rounds)
            .map(|round| {
                if round % 2 == 0 {
                    (with(), without())
                } else {
                    let without = without();
                    (with(), without)
                }
            })
            .collect();
        println!(
            "{name}: p99 {:.0} µs with, {:.0} µs without; ratio {:.2} (median of {rounds})",
            median(pairs.iter().map(|pair| pair.0)),
            median(pairs.iter().map(|pair| pair.1)),
            median(pairs.iter().map(|pair| pair.0 / pair.1)),
        );
    };
    for policy in ["registries", "limit"] {
        let with = || {
            let _looping = load.in_background(&server.address, &path("loop"));
            p99(policy)
        };
        print(&format!("{policy}, with another policy that loops"), &with, &|| p99_alone(policy));
    }
    for policy in ["registries", "limit"] {
        for looping in ["loop", "rego-loop"] {
            let with = || {
                let _looping: Vec<_> = (0..MANY).map(|_| load.in_background(&server.address, &path(looping))).collect();
                p99(policy)
            };
            print(&format!("{policy}, with {MANY} requests at once to {looping}"), &with, &|| p99_alone(policy));
        }
    }
    print("registries, with an experiment", &|| p99("previewed"), &|| p99("registries"));
    print("registries, with an experiment that loops", &|| p99("beside-a-loop"), &|| p99("registries"));
    drop(server);
    match Cgroup::new(CONTAINER) {
        Ok(container) => beside_memory(&container, folder.path(), &load, half, &print),
        Err(error) => println!("not measured: a policy that takes memory; a cgroup cannot be created: {error}"),
    }
}

/// Measures policies beside a policy that takes all the memory that it gets, in a container.
fn beside_memory(container: &Cgroup, folder: &Path, load: &Load, half: Duration, print: Print<'_>) {
    let command = container.command(Path::new(env!("CARGO_BIN_EXE_policy-server")));
    let server = Server::policy_server_by(command, folder);
    let path = |policy: &str| format!("/validate/cluster.{policy}");
    let p99 = |policy: &str| load.run(&server.address, &path(policy), half).p99().as_secs_f64() * 1e6;
    let p99_alone = |policy: &str| {
        server.until_idle();
        p99(policy)
    };
    for policy in ["registries", "limit"] {
        load.until_allowed(&server.address, &path(policy));
    }
    load.until(&server.address, &path("greedy"), "exceeded the allowed execution time");
    for policy in ["registries", "limit"] {
        let with = || {
            let _greedy: Vec<_> = (0..MANY).map(|_| load.in_background(&server.address, &path("greedy"))).collect();
            p99(policy)
        };
        print(&format!("{policy}, with {MANY} requests at once to a policy that takes memory"), &with, &|| {
            p99_alone(policy)
        });
        // The policy still answers.
        load.until_allowed(&server.address, &path(policy));
    }
    println!("peak memory in a container of {} MiB: {} MiB", CONTAINER >> 20, container.peak() >> 20);
    assert_eq!(container.oom_kills(), 0, "the kernel has ended a process");
}

fn prepare(folder: &Path) {
    let manifests = server::folder(folder);
    std::fs::write(manifests.join("loop.wasm"), wat::parse_str(LOOP).expect("a module")).expect("the module");
    std::fs::write(manifests.join("greedy.wasm"), wat::parse_str(GREEDY).expect("a module")).expect("the module");
    std::fs::copy(example("policies/trusted-registries/trusted-registries.wasm"), manifests.join("registries.wasm"))
        .expect("the example module");
    let registries = spec(
        &json!({"wasm": {"module": "file://./registries.wasm"}}),
        &json!({"registries": ["registry.example.com", "docker.io/library", "registry.k8s.io"]}),
    );
    let looping = spec(&json!({"wasm": {"module": "file://./loop.wasm"}}), &json!({}));
    let greedy = spec(&json!({"wasm": {"module": "file://./greedy.wasm"}}), &json!({}));
    // The condition keeps the trial run fast: before a policy is accepted, it is tried on a request for another object.
    let source = "package a\ndeny contains \"no\" if {\n  input.request.object.spec\n  \
        count([1 | some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a == b + 1e9]) > 0\n}\n";
    let rego_loop = spec(&json!({"rego": {"dialect": "Admission", "source": source}}), &json!({}));
    let limit = spec(
        &json!({"cel": {"validations": [{"expression": "object.spec.containers.size() <= params.max"}]}}),
        &json!({"max": 10}),
    );
    let experiment =
        |policy: &str, spec: &Value| json!({"policyRef": {"name": policy}, "autoStart": true, "policy": spec});
    for (kind, name, spec) in [
        ("ClusterPolicy", "registries", registries.clone()),
        ("ClusterPolicy", "limit", limit),
        ("ClusterPolicy", "loop", looping.clone()),
        ("ClusterPolicy", "rego-loop", rego_loop),
        ("ClusterPolicy", "greedy", greedy),
        ("ClusterPolicy", "previewed", registries.clone()),
        ("ClusterPolicyExperiment", "experiment", experiment("previewed", &registries)),
        ("ClusterPolicy", "beside-a-loop", registries.clone()),
        ("ClusterPolicyExperiment", "looping", experiment("beside-a-loop", &looping)),
    ] {
        let manifest = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        std::fs::write(manifests.join(format!("{name}.json")), manifest.to_string()).expect("a manifest");
    }
}

fn spec(program: &Value, settings: &Value) -> Value {
    json!({"program": program, "settings": settings, "admission": {"rules": server::rules()}})
}
