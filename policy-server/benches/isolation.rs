//! The effect of a policy that loops until its timeout on other policies, and of an experiment on its live policy: the ratio of
//! the p99 latency with the policy or experiment to the p99 latency without it. The two are measured alternately in one run, at
//! about 1,500 requests per second, a load at which the CPUs have idle time.
//!
//! `cargo bench -p policy-server --bench isolation`. Variables: `PROVISO_BENCH_ROUNDS` (default 9),
//! `PROVISO_BENCH_CONNECTIONS` (8), and `PROVISO_BENCH_PAUSE_MS` (5), the pause of a client between an answer and its next request.

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

#[path = "http/load.rs"]
mod load;
#[path = "http/server.rs"]
mod server;

use std::path::Path;
use std::time::Duration;

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
    for policy in ["registries", "previewed", "beside-a-loop", "limit"] {
        load.until_allowed(&server.address, &path(policy));
    }
    load.until(&server.address, &path("loop"), "exceeded the allowed execution time");
    let print = |name: &str, with: &dyn Fn() -> f64, without: &dyn Fn() -> f64| {
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
        print(&format!("{policy}, with another policy that loops"), &with, &|| p99(policy));
    }
    print("registries, with an experiment", &|| p99("previewed"), &|| p99("registries"));
    print("registries, with an experiment that loops", &|| p99("beside-a-loop"), &|| p99("registries"));
}

fn prepare(folder: &Path) {
    let manifests = server::folder(folder);
    std::fs::write(manifests.join("loop.wasm"), wat::parse_str(LOOP).expect("a module")).expect("the module");
    std::fs::copy(example("policies/trusted-registries/trusted-registries.wasm"), manifests.join("registries.wasm"))
        .expect("the example module");
    let registries = spec(
        &json!({"wasm": {"module": "file://./registries.wasm"}}),
        &json!({"registries": ["registry.example.com", "docker.io/library", "registry.k8s.io"]}),
    );
    let looping = spec(&json!({"wasm": {"module": "file://./loop.wasm"}}), &json!({}));
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
