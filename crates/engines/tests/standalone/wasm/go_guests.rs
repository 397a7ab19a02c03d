//! Modules that Go's own compiler builds. Their answers with snapshots are the answers that they give without snapshots.

use std::path::Path;
use std::process::Command;

use proviso_core::Verdict;
use proviso_engines::wasm::{Config, Engine, Program, Snapshot};

use super::guest::{load, long_deadline, review};

/// The part of a policy that `proviso new go` writes for the interface to the host.
const MAIN: &str = include_str!("../../../../../cli/src/scaffold/go/main.go.txt");

/// Builds a policy that denies requests with the label `reveal`, with the value of a Go expression as its message. It allows all
/// other requests, so that no trial call reveals the value.
fn build(name: &str, package: &str, declaration: &str, expression: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-guests").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let policy = format!(
        r#"package main

import (
	"fmt"
	"{package}"
)

{declaration}

type Settings struct{{}}

type Request struct {{
	Object struct {{
		Metadata struct {{
			Labels map[string]string `json:"labels"`
		}} `json:"metadata"`
	}} `json:"object"`
}}

func (Settings) check() error {{ return nil }}

func decide(request Request, _ Settings) error {{
	if _, found := request.Object.Metadata.Labels["reveal"]; found {{
		return fmt.Errorf("%d", {expression})
	}}
	return nil
}}
"#
    );
    for (file, text) in [("go.mod", "module guest\n\ngo 1.24\n"), ("main.go", MAIN), ("policy.go", &policy)] {
        std::fs::write(folder.join(file), text).unwrap();
    }
    // The same options as in the Makefile of `proviso new go`.
    let built = Command::new("go")
        .args(["build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", "policy.wasm", "."])
        .current_dir(&folder)
        .envs([("GOOS", "wasip1"), ("GOARCH", "wasm"), ("GOWORK", "off"), ("GOFLAGS", "")])
        .output()
        .expect("Go is installed");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::read(folder.join("policy.wasm")).unwrap()
}

#[tokio::test]
async fn answers_are_as_without_a_snapshot() {
    let engine = Engine::new(Config { concurrency: 4, ..Config::default() }).unwrap();
    let revealing = review(r#"{"uid":"u","operation":"CREATE","object":{"metadata":{"labels":{"reveal":""}}}}"#);
    let other = review(r#"{"uid":"u","operation":"CREATE","object":{"metadata":{"labels":{"app":"a"}}}}"#);
    for (name, package, declaration, expression, refusal) in [
        ("clock", "time", "var started = time.Now()", "started.UnixNano()", Some("reads the clock")),
        ("generator", "math/rand", "", "rand.Int63()", Some("math/rand")),
        // The time of the evaluation, and not of the initialisation, needs no initialisation in each evaluation.
        ("evaluation", "time", "", "time.Now().UnixNano()", None),
    ] {
        let wasm = build(name, package, declaration, expression);
        let mut module = load(&engine, &wasm).unwrap();
        // The trial calls have a time limit, which a busy machine exceeds.
        for _ in 0..5 {
            if matches!(module.snapshot(), Snapshot::Refused(cause) if cause.contains("too long")) {
                module = load(&engine, &wasm).unwrap();
            }
        }
        match (module.snapshot(), refusal) {
            (Snapshot::Refused(cause), Some(words)) => assert!(cause.contains(words), "{name}: {cause}"),
            (snapshot, refusal) => assert_eq!((snapshot, refusal), (&Snapshot::Recorded, None), "{name}"),
        }
        let program = Program::new(module, *b"{}");
        assert_eq!(program.evaluate(&other, long_deadline()).await, Ok(Verdict::allow()), "{name}");
        let first = program.evaluate(&revealing, long_deadline()).await.unwrap().message.unwrap();
        let second = program.evaluate(&revealing, long_deadline()).await.unwrap().message.unwrap();
        assert!(first.parse::<u64>().is_ok() && first != second, "{name}: {first} {second}");
    }
}
