//! Throughput of the policy server beside a bare hyper and rustls server that answers a constant: same TLS, same body,
//! same connections, in turn, so that a noisy machine disturbs both alike. The ratio is what counts.
//!
//! `cargo bench -p policy-server --bench http`; `PROVISO_BENCH_ROUNDS` (5) and `PROVISO_BENCH_CONNECTIONS` (8).

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, counts roughly, and may give up"
)]

#[path = "http/bare.rs"]
mod bare;
#[path = "http/load.rs"]
mod load;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use load::{Load, Sample};
use serde_json::json;

/// How long each server is asked in each round.
const ROUND: Duration = Duration::from_secs(3);
/// Marks the process that is the bare server.
const BARE: &str = "PROVISO_BENCH_BARE";

fn main() {
    if std::env::var_os(BARE).is_some() {
        return bare::serve(Path::new(&std::env::args().nth(1).expect("the folder of the certificate")));
    }
    // `cargo test --benches` asks only whether the benchmark starts.
    let (rounds, round) = if std::env::args().any(|argument| argument == "--bench") {
        (number("PROVISO_BENCH_ROUNDS", 5), ROUND)
    } else {
        (1, Duration::from_millis(200))
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    prepare(folder.path());
    let bare =
        Server::start(Command::new(std::env::current_exe().expect("this program")).arg(folder.path()).env(BARE, "1"));
    let ours = Server::start(
        Command::new(env!("CARGO_BIN_EXE_policy-server"))
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"])
            .arg("--manifests")
            .arg(folder.path().join("manifests"))
            .arg("--tls-cert")
            .arg(folder.path().join("tls.crt"))
            .arg("--tls-key")
            .arg(folder.path().join("tls.key")),
    );
    let body = compact(&example("reviews/pod-create.json"));
    let load = Load::new(folder.path(), body, number("PROVISO_BENCH_CONNECTIONS", 8));
    // The first is not even asked: what it costs is everything but an engine.
    for policy in ["disabled", "nothing", "trusted-registries", "required-labels", "replica-limit"] {
        let path = format!("/validate/cluster.{policy}");
        load.until_allowed(&ours.address, &path);
        let mut ratios = Vec::new();
        let (mut our_sample, mut bare_sample) = (Sample::default(), Sample::default());
        for _ in 0..rounds {
            let bare_round = load.run(&bare.address, &path, round);
            let our_round = load.run(&ours.address, &path, round);
            ratios.push(our_round.per_second() / bare_round.per_second());
            our_sample.add(our_round);
            bare_sample.add(bare_round);
        }
        ratios.sort_by(f64::total_cmp);
        println!("{policy}\n  bare  {bare_sample}\n  ours  {our_sample}");
        println!(
            "  ratio {:.2} (median of {rounds}; {:.2} to {:.2})",
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1]
        );
    }
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn example(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(path)
}

/// The review as an API server sends it: without the spaces and line breaks that make the file readable.
fn compact(review: &Path) -> Vec<u8> {
    let readable = std::fs::read(review).expect("a recorded review");
    let review: serde_json::Value = serde_json::from_slice(&readable).expect("a review");
    review.to_string().into_bytes()
}

/// A certificate, and policies that allow the review: the smallest wasm module, one of Rust, Rego, CEL.
fn prepare(folder: &Path) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(folder.join("tls.crt"), certified.cert.pem()).expect("tls.crt");
    std::fs::write(folder.join("tls.key"), certified.signing_key.serialize_pem()).expect("tls.key");
    let manifests = folder.join("manifests");
    std::fs::create_dir(&manifests).expect("the folder of manifests");
    let nothing = wat::parse_str(NOTHING).expect("a module");
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
        let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
        let manifest = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": {"program": program, "settings": settings, "enabled": name != "disabled", "admission": {"rules": rules}},
        });
        std::fs::write(manifests.join(format!("{name}.json")), manifest.to_string()).expect("a manifest");
    }
}

/// Accepts everything without looking at it.
const NOTHING: &str = r#"(module
    (import "wapc" "__guest_response" (func $respond (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "{\"accepted\":true}{\"valid\":true}")
    (func (export "__guest_call") (param $operation_length i32) (param i32) (result i32)
        (if (i32.eq (local.get $operation_length) (i32.const 17))
            (then (call $respond (i32.const 17) (i32.const 14)))
            (else (call $respond (i32.const 0) (i32.const 17))))
        (i32.const 1)))"#;

/// A server in a process of its own; it ends with this value.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// Starts a server that writes its address, `https://…`, as the field `listen` of a JSON line to stderr.
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a server");
        let mut lines = BufReader::new(process.stderr.take().expect("its stderr")).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line).ok()?;
            Some(line["listen"].as_str()?.trim_start_matches("https://").to_owned())
        });
        // Its pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address: address.expect("the address of the server") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
