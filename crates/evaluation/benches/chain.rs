//! The time of a chain of request policies, beside OPA with the same policies and payloads: OPA's Go library in its own process, and one
//! request to an OPA server on loopback for each policy, as the engine that the DCM project published does it.
//!
//! The three are measured alternately in one run, each from the bytes of the payload to the bytes of the final payload. Proviso also
//! validates the constraints; the chain of the Go program only collects them. It prints p50 and p99, and the ratios to Proviso.
//!
//! `cargo bench -p proviso-evaluation --bench chain` needs Go. Variable: `PROVISO_BENCH_ROUNDS` (default 10).

#![allow(
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints, rounds numbers, and may panic"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use proviso_artifacts::Fetcher;
use proviso_core::request::{Decision, Request};
use proviso_evaluation::{Evaluator, RequestPolicies};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The numbers of policies, each with the number of evaluations in one round, with a payload of 1 kB.
const CHAINS: [(usize, usize); 4] = [(1, 200), (10, 100), (100, 20), (1000, 5)];
/// The sizes of the payload in bytes, each with the number of evaluations in one round of 10 policies.
const PAYLOADS: [(usize, usize); 2] = [(10_000, 50), (100_000, 10)];
const SMALL: usize = 1_000;
const ENGINES: [&str; 3] = ["proviso", "library", "server"];

fn main() {
    // `cargo test --benches` only checks that the benchmark starts.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let rounds = std::env::var("PROVISO_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
    let mut opa = Opa::start();
    println!("Times in µs. The ratios are those of the p50 to the p50 of Proviso.");
    println!(
        "policies payload samples      p50       p99  library p50  library p99   server p50   server p99   library    server"
    );
    for (policies, iterations) in CHAINS {
        let chain = Chain::new(policies, &runtime);
        opa.load(&chain.sources);
        chain.print(SMALL, iterations, rounds, &mut opa, &runtime);
        for (bytes, iterations) in PAYLOADS.into_iter().filter(|_| policies == 10) {
            chain.print(bytes, iterations, rounds, &mut opa, &runtime);
        }
    }
}

/// A chain of policies in Rego that all cover the request. Each policy reads the payload and the caller, sets a label, and constrains a
/// field.
struct Chain {
    sources: Vec<String>,
    policies: RequestPolicies,
}

impl Chain {
    fn new(count: usize, runtime: &Runtime) -> Self {
        let source = |number: usize| {
            let label = number % 10;
            format!(
                "package bench.p{number}\n\nresult := {{\n\
                 \t\"patch\": {{\"labels\": {{\"l{label}\": concat(\"-\", [input.payload.service_type, \"{number}\"])}}}},\n\
                 \t\"constraints\": {{\"cpu\": {{\"maximum\": 64}}}},\n\
                 }} if {{\n\tinput.payload.cpu <= 64\n\tinput.user == \"ana\"\n}}\n"
            )
        };
        let sources: Vec<String> = (0..count).map(source).collect();
        let folder = tempfile::tempdir().expect("a folder");
        for (number, source) in sources.iter().enumerate() {
            let manifest = json!({
                "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": format!("p{number}")},
                "spec": {
                    "request": {"priority": number + 1},
                    "program": {"rego": {"dialect": "Request", "source": source}},
                },
            });
            let file = folder.path().join(format!("{number}.json"));
            std::fs::write(file, manifest.to_string()).expect("a manifest");
        }
        let evaluator = Evaluator::new(Fetcher::new(None, None, None));
        let policies = runtime.block_on(RequestPolicies::read(folder.path(), &evaluator)).expect("the policies");
        Self { sources, policies }
    }

    /// Measures all engines in turn, and prints one line.
    fn print(&self, bytes: usize, iterations: usize, rounds: usize, opa: &mut Opa, runtime: &Runtime) {
        let payload = payload(bytes);
        let mut samples: [Vec<Duration>; 3] = std::array::from_fn(|_| Vec::new());
        // The first round warms up the engines, and shows that all of them decide the same.
        for round in 0..=rounds {
            for (engine, samples) in ENGINES.into_iter().zip(&mut samples) {
                let (times, last) = if engine == "proviso" {
                    self.measure(&payload, iterations, runtime)
                } else {
                    opa.measure(engine, &payload, iterations)
                };
                assert!(last["labels"]["l0"].is_string(), "{engine}: {last}");
                if round == 0 {
                    assert_eq!(last, self.measure(&payload, 1, runtime).1, "{engine}");
                } else {
                    samples.extend(times);
                }
            }
        }
        for times in &mut samples {
            times.sort_unstable();
        }
        let at = |engine: usize, percent: usize| micros(samples[engine][(samples[engine].len() - 1) * percent / 100]);
        println!(
            "{:>8} {:>7} {:>7} {:>8.1} {:>9.1} {:>12.1} {:>12.1} {:>12.1} {:>12.1} {:>8.1}× {:>8.1}×",
            self.sources.len(),
            bytes,
            samples[0].len(),
            at(0, 50),
            at(0, 99),
            at(1, 50),
            at(1, 99),
            at(2, 50),
            at(2, 99),
            at(1, 50) / at(0, 50),
            at(2, 50) / at(0, 50),
        );
    }

    /// Evaluates the chain several times. Returns the times and the last payload.
    fn measure(&self, payload: &Value, iterations: usize, runtime: &Runtime) -> (Vec<Duration>, Value) {
        let text = payload.to_string();
        let mut times = Vec::new();
        let mut last = Vec::new();
        for _ in 0..iterations {
            let start = Instant::now();
            let payload = serde_json::from_str(&text).expect("a payload");
            let request = Request::new(payload, Some("blue".to_owned()), Some("ana".to_owned())).expect("a request");
            let outcome = runtime.block_on(self.policies.evaluate(request));
            last = serde_json::to_vec(&outcome.payload).expect("a payload");
            times.push(start.elapsed());
            assert_eq!(outcome.decision, Decision::Modified);
        }
        (times, serde_json::from_slice(&last).expect("a payload"))
    }
}

/// Returns the payload of a request for a virtual machine with about this number of bytes as JSON.
fn payload(bytes: usize) -> Value {
    let disk = |number: usize| json!({"name": format!("disk-{number}"), "size_gib": 20, "tags": ["fast", "backup"]});
    let mut payload = json!({"service_type": "vm", "cpu": 2, "labels": {}, "disks": []});
    let count = (bytes - payload.to_string().len()) / (disk(100).to_string().len() + 1);
    payload["disks"] = (0..count).map(disk).collect();
    payload
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1_000.0
}

/// The Go program with OPA, and the OPA server that it has started. See `opa/main.go`.
struct Opa {
    child: Child,
    /// The input of the program; `None` while this value is dropped.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Opa {
    fn start() -> Self {
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("opa");
        let built = Command::new("go")
            .args(["build", "-trimpath", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/opa"))
            .env("CGO_ENABLED", "0")
            .status()
            .expect("Go, to build OPA");
        assert!(built.success(), "OPA is not built: {built}");
        let mut child =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program with OPA");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, input, output }
    }

    fn ask(&mut self, command: &Value) -> Value {
        let input = self.input.as_mut().expect("the input of the program with OPA");
        writeln!(input, "{command}").expect("the program with OPA reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program with OPA answers");
        line.parse().expect("an answer of the program with OPA")
    }

    fn load(&mut self, sources: &[String]) {
        self.ask(&json!({"policies": sources}));
    }

    fn measure(&mut self, engine: &str, payload: &Value, iterations: usize) -> (Vec<Duration>, Value) {
        let answer = self.ask(&json!({"engine": engine, "payload": payload, "iterations": iterations}));
        let times = answer["nanoseconds"].as_array().expect("times").iter();
        (times.filter_map(Value::as_u64).map(Duration::from_nanos).collect(), answer["payload"].clone())
    }
}

impl Drop for Opa {
    fn drop(&mut self) {
        // At the end of its input, the program ends the OPA server and then itself.
        self.input = None;
        let _ = self.child.wait();
    }
}
