//! The throughput of the policy server, compared with a bare hyper and rustls server that answers a constant, with the same TLS,
//! the same body and the same number of connections. The servers are measured in turn, so that a noisy machine affects them
//! equally. The results are ratios. The ratio of the CPU time per answer (Linux only) has less noise than that of the throughput,
//! because the CPU time does not include the clients.
//!
//! `cargo bench -p policy-server --bench http`, followed by `--` and the names of policies to measure only those. Variables:
//! `PROVISO_BENCH_ROUNDS` (default 5), `PROVISO_BENCH_CONNECTIONS` (8), and `PROVISO_BENCH_OTHERS`, the paths of other builds to
//! compare with.

#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, rounds numbers, may panic, and uses a part of shared modules"
)]

#[path = "http/bare.rs"]
mod bare;
#[path = "http/load.rs"]
mod load;
#[path = "http/server.rs"]
mod server;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use load::{Load, Sample};
use serde_json::json;
use server::{Server, env_number, example, median};

/// The duration of the measurement of each server in a round.
const ROUND: Duration = Duration::from_secs(2);
/// The variable that makes this program run the bare server.
const BARE: &str = "PROVISO_BENCH_BARE";

fn main() {
    if std::env::var_os(BARE).is_some() {
        return bare::serve(Path::new(&std::env::args().nth(1).expect("the folder of the certificate")));
    }
    let (options, wanted): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    // `cargo test --benches` only checks that the benchmark starts.
    let (rounds, round) = if options.iter().any(|option| option == "--bench") {
        (env_number("PROVISO_BENCH_ROUNDS", 5), ROUND)
    } else {
        (1, Duration::from_millis(200))
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    prepare(folder.path());
    let this = std::env::current_exe().expect("this program");
    let mut servers = vec![
        ("bare".to_owned(), Server::start(Command::new(this).arg(folder.path()).env(BARE, "1"))),
        ("ours".to_owned(), Server::policy_server(Path::new(env!("CARGO_BIN_EXE_policy-server")), folder.path())),
    ];
    for other in std::env::var("PROVISO_BENCH_OTHERS").unwrap_or_default().split_whitespace() {
        servers.push((other.to_owned(), Server::policy_server(Path::new(other), folder.path())));
    }
    let load = Load::new(folder.path(), server::review(), env_number("PROVISO_BENCH_CONNECTIONS", 8));
    // The program of a disabled policy is not evaluated: its result is the cost of the server without an engine.
    for policy in ["disabled", "nothing", "trusted-registries", "required-labels", "replica-limit"] {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == policy) {
            continue;
        }
        let path = format!("/validate/cluster.{policy}");
        let mut samples: Vec<Vec<Sample>> = servers.iter().map(|_| Vec::new()).collect();
        for (_, server) in &servers {
            load.until_allowed(&server.address, &path);
        }
        for _ in 0..rounds {
            for ((_, server), samples) in servers.iter().zip(&mut samples) {
                samples.push(server.measure(&load, &path, round));
            }
        }
        println!("{policy}");
        for ((name, _), samples_of) in servers.iter().zip(&samples) {
            // The ratio of each sample to the sample of the bare server in the same round.
            let ratio = |of: fn(&Sample) -> f64| median(samples_of.iter().zip(&samples[0]).map(|(a, b)| of(a) / of(b)));
            let throughput = ratio(Sample::per_second);
            let cpu = 1.0 / ratio(Sample::cpu_per_answer);
            let sum: Sample = samples_of.iter().sum();
            println!("  {sum}   ratio {throughput:.2}   cpu ratio {cpu:.2}   {name}");
        }
    }
}

/// Writes a certificate, and policies that allow the review: a minimal wasm module, a wasm module in Rust, Rego and CEL.
fn prepare(folder: &Path) {
    let manifests = server::folder(folder);
    let nothing = wat::parse_str(server::NOTHING).expect("a module");
    std::fs::write(manifests.join("nothing.wasm"), nothing).expect("the module");
    std::fs::copy(example("policies/trusted-registries/trusted-registries.wasm"), manifests.join("registries.wasm"))
        .expect("the example module");
    let labels = "package labels\nviolation[{\"msg\": msg}] {\n  needed := {label | label := input.parameters.labels[_]}\n  \
        given := {label | input.review.object.metadata.labels[label]}\n  missing := needed - given\n  count(missing) > 0\n  \
        msg := sprintf(\"missing: %v\", [missing])\n}\n";
    for (name, program, settings) in [
        ("disabled", json!({"cel": {"validations": []}}), json!({})),
        ("nothing", json!({"wasm": {"module": "file://./nothing.wasm"}}), json!({})),
        (
            "trusted-registries",
            json!({"wasm": {"module": "file://./registries.wasm"}}),
            json!({"registries": ["registry.example.com", "docker.io/library", "registry.k8s.io"]}),
        ),
        ("required-labels", json!({"rego": {"dialect": "Gatekeeper", "source": labels}}), json!({"labels": ["owner"]})),
        (
            "replica-limit",
            json!({"cel": {"validations": [{"expression": "object.spec.containers.size() <= params.max"}]}}),
            json!({"max": 10}),
        ),
    ] {
        let manifest = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": {"program": program, "settings": settings, "enabled": name != "disabled", "admission": {"rules": server::rules()}},
        });
        std::fs::write(manifests.join(format!("{name}.json")), manifest.to_string()).expect("a manifest");
    }
}
