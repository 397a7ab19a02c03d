//! Runs the Rego policies in `cases/rego.yaml`, and policies that try to exhaust the process.

mod faults;
mod inventory;

use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use proviso_core::{Review, Verdict};
use proviso_engines::rego::{Dialect, Program};
use proviso_engines::{CompileError, Deadline, EvaluationError, Shortage};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::deadline::ended_at;
use crate::places::Places;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    dialect: String,
    /// Variants of one policy, which must all give the same answers.
    sources: Vec<String>,
    entrypoint: Option<String>,
    #[serde(default)]
    settings: Value,
    /// The reason and a part of the message, if the compiler refuses the policy.
    refused: Option<(String, String)>,
    #[serde(default)]
    reviews: Vec<Expected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    #[serde(default)]
    request: serde_json::Map<String, Value>,
    /// The message of a denial.
    deny: Option<String>,
    #[serde(default)]
    allow: bool,
    /// The reason and a part of the message, if the evaluation fails.
    error: Option<(String, String)>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    causes: usize,
    code: Option<u16>,
    patch: Option<Value>,
}

fn review(request: &serde_json::Map<String, Value>) -> Review {
    let mut whole = json!({
        "uid": "u", "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
    });
    whole.as_object_mut().unwrap().extend(request.clone());
    Review::admission(Bytes::from(json!({"request": whole}).to_string())).unwrap()
}

fn compile(source: &str) -> Result<Program, CompileError> {
    Program::compile(source, Dialect::Gatekeeper, None, &json!({}))
}

fn ample() -> Deadline {
    Deadline::after(Duration::from_mins(1))
}

#[tokio::test]
async fn policies_decide_as_their_cases_say() {
    let cases: Vec<Case> = serde_yaml::from_str(include_str!("../cases/rego.yaml")).unwrap();
    for case in cases {
        let dialect = match case.dialect.as_str() {
            "Gatekeeper" => Dialect::Gatekeeper,
            "Admission" => Dialect::Admission,
            other => panic!("{}: no dialect {other}", case.name),
        };
        for source in &case.sources {
            let compiled = Program::compile(source, dialect, case.entrypoint.as_deref(), &case.settings);
            if let Some((reason, part)) = &case.refused {
                let Err(error) = compiled else { panic!("{}: compiled", case.name) };
                let message = error.to_string();
                assert!(
                    error.reason().as_str() == reason.as_str() && message.contains(part.as_str()),
                    "{}: {error:?}",
                    case.name
                );
                continue;
            }
            let program = compiled.unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert!(!case.reviews.is_empty(), "{} checks nothing", case.name);
            for (number, expected) in case.reviews.iter().enumerate() {
                let verdict = program.evaluate(&review(&expected.request), ample()).await;
                check(&format!("{}, review {number}, of {source}", case.name), expected, verdict);
            }
        }
    }
}

fn check(name: &str, expected: &Expected, verdict: Result<Verdict, EvaluationError>) {
    if let Some((reason, part)) = &expected.error {
        let Err(error) = verdict else { panic!("{name}: {verdict:?}") };
        assert!(error.reason() == reason && error.to_string().contains(part.as_str()), "{name}: {error:?}");
        return;
    }
    let verdict = verdict.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(verdict.allowed, expected.allow, "{name}: {verdict:?}");
    assert_eq!(verdict.message, expected.deny, "{name}");
    assert_eq!(verdict.warnings, expected.warnings, "{name}");
    assert_eq!(verdict.causes.len(), expected.causes, "{name}: {verdict:?}");
    assert_eq!(verdict.code, expected.code, "{name}");
    assert_eq!(verdict.patch.map(|patch| serde_json::to_value(patch).unwrap()), expected.patch, "{name}");
}

#[tokio::test]
async fn a_loop_ends_at_the_deadline() {
    let program = compile(
        "package p\nviolation[{\"msg\": \"m\"}] { a := numbers.range(1, input.review.n); x := a[_]; y := a[_]; z := a[_]; \
         x + y + z < 0 }",
    )
    .unwrap();
    let long = review(&serde_json::Map::from_iter([("n".to_owned(), json!(2000))]));
    let deadline = Deadline::after(Duration::from_secs(1));
    let result = ended_at(deadline, program.evaluate(&long, deadline)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
    // More evaluations than may run at once: the loops occupy all places.
    let (mut loops, places, deadline) = (JoinSet::new(), Places::new(), Deadline::after(Duration::from_millis(500)));
    for _ in 0..600 {
        let (program, long, places) = (program.clone(), long.clone(), places.clone());
        loops.spawn(async move { places.run(deadline, program.evaluate(&long, deadline)).await });
    }
    let ended = loops.join_all().await;
    assert!(ended.contains(&Err(EvaluationError::Overloaded(Shortage::Cpu))), "all evaluations ran at once");
    assert!(
        ended.iter().all(|it| matches!(it, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded(_))))
    );
    // The places are free again: a loop that continued would keep its place for many minutes.
    let short = review(&serde_json::Map::from_iter([("n".to_owned(), json!(1))]));
    assert_eq!(places.run(ample(), program.evaluate(&short, ample())).await, Ok(Verdict::allow()));
}

#[tokio::test]
async fn a_review_of_maximal_depth_is_evaluated() {
    let source = "package p\nviolation[{\"msg\": \"found\"}] { walk(input.review.object, [path, value]); value == \"x\"; \
                  count(path) > 200; json.marshal(input) != \"\" }";
    let mut object = json!("x");
    for _ in 0..250 {
        object = json!({"a": object});
    }
    let request = serde_json::Map::from_iter([("object".to_owned(), object)]);
    let verdict = compile(source).unwrap().evaluate(&review(&request), ample()).await.unwrap();
    assert_eq!(verdict.message.as_deref(), Some("found"));
}

/// The compiler evaluates a typical request, so that such a policy does not become live.
#[test]
fn policies_that_fail_for_every_object_are_refused() {
    for condition in [
        "input.review.operation == \"CREATE\"",
        "input.review.kind.kind",
        "input.review.userInfo.username",
        "input.review.object.metadata",
        "input.review.oldObject == null",
    ] {
        let source = format!(
            "package p\nbad = 1 {{ {condition} }}\nbad = 2 {{ {condition} }}\nviolation[{{\"msg\": \"m\"}}] {{ bad > 0 }}"
        );
        assert!(matches!(compile(&source), Err(CompileError::Invalid(_))), "{source}");
    }
    // An invalid answer is not an error of the policy: the object of the trial request has no name.
    compile("package p\nviolation[{\"msg\": msg}] { msg := object.get(input.review.object.metadata, \"name\", 1) }")
        .unwrap();
}

/// Before the limits existed, each of these policies ended the process or occupied it for minutes.
#[test]
fn policies_that_exceed_a_limit_are_refused_when_compiled() {
    let rules = |make: fn(usize) -> String| (0..2000).map(make).collect::<Vec<_>>().join("\n");
    for (name, body) in [
        ("nested lists", format!("v = {}1{}", "[".repeat(24), "]".repeat(24))),
        ("a sum", format!("v = {}", vec!["1"; 50_000].join("\n+ "))),
        ("a reference", format!("v = input{}", "\n.a".repeat(50_000))),
        ("statements", format!("v = 1 {{\n{}\n}}", "input.a[_] == 1\n".repeat(4000))),
        ("a recursive function", "v = f(1)\nf(x) = y { y := f(x + 1) }".to_owned()),
        ("recursive rules", "v = a\na = y { y := b }\nb = y { y := a }".to_owned()),
        ("recursion through data", "v = a\na = y { y := data.p.v }".to_owned()),
        ("recursion through a function value", "v = f(1)\nf(x) = y { y := g with input as x }\ng = f(2)".to_owned()),
        ("a chain of functions", rules(|i| format!("f{i}(x) = y {{ y := f{}(x) }}", i + 1)) + "\nf2000(x) = x"),
        ("a chain of rules", rules(|i| format!("r{i} = y {{ y := r{} }}", i + 1)) + "\nr2000 = 1"),
        ("a huge source", format!("v = 1 # {}", "x".repeat(300 * 1024))),
    ] {
        let started = Instant::now();
        let result = compile(&format!("package p\nviolation[{{\"msg\": \"m\"}}] {{ v == 1 }}\n{body}\n"));
        let Err(error) = result else { panic!("{name} compiled") };
        assert!(started.elapsed() < Duration::from_secs(20), "{name}");
        assert!(!error.to_string().is_empty());
    }
}

/// The heaviest policies below the limits must not overflow the stack of a normal thread.
#[tokio::test]
async fn policies_just_below_the_limits_run() {
    let chain = (0..70).map(|i| format!("f{i}(x) = y {{ y := f{}(x) }}\n", i + 1)).collect::<Vec<_>>().concat();
    let wide = (0..190).map(|i| format!("  x{i} := input.review.list[_]\n  x{i} == 1\n")).collect::<Vec<_>>().concat();
    for body in [
        format!("{chain}f70(x) = x\nv = f0(1)"),
        format!("v = 1 {{\n{wide}}}"),
        format!("v = y {{ y := 1\n{}0 }}", "+".to_owned() + &"0\n+".repeat(100)),
    ] {
        let source = format!("package p\nviolation[{{\"msg\": \"m\"}}] {{ v == 1 }}\n{body}\n");
        let program = compile(&source).unwrap_or_else(|error| panic!("{error}: {source}"));
        let request = serde_json::Map::from_iter([("list".to_owned(), json!([1]))]);
        let verdict = program.evaluate(&review(&request), ample()).await.unwrap();
        assert_eq!(verdict.message.as_deref(), Some("m"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_sources_do_not_end_the_process(source in "[\\[\\]{}()a-c\"`%#.:=+\n \\\\-]{0,60}") {
        let _ = compile(&format!("package p\nviolation[{{\"msg\": m}}] {{ m := \"m\" }}\n{source}"));
    }

    /// A denial names each violation once, for all sets of labels.
    #[test]
    fn each_missing_label_is_named(required in proptest::collection::btree_set("[a-z]{1,6}", 0..6),
                                   present in proptest::collection::btree_set("[a-z]{1,6}", 0..6)) {
        let source = "package p\nviolation[{\"msg\": label}] {\n  label := input.parameters.labels[_]\n  \
                      not input.review.object.metadata.labels[label]\n}";
        let program = Program::compile(source, Dialect::Gatekeeper, None, &json!({"labels": required})).unwrap();
        let labels: serde_json::Map<_, _> = present.iter().map(|label| (label.clone(), json!("x"))).collect();
        let request = serde_json::Map::from_iter([("object".to_owned(), json!({"metadata": {"labels": labels}}))]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let verdict = runtime.block_on(program.evaluate(&review(&request), ample())).unwrap();
        let missing: Vec<String> = required.difference(&present).cloned().collect();
        prop_assert_eq!(verdict.allowed, missing.is_empty());
        prop_assert_eq!(verdict.message.unwrap_or_default(), missing.join(", "));
    }
}
