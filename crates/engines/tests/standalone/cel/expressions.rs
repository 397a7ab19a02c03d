//! Runs the validations in `cases/cel.yaml`, and expressions that try to exhaust the process or to exceed the deadline.

use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use proviso_core::{Review, Verdict};
use proviso_engines::cel::{Program, Validation};
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
    /// Expressions that are true for the review below.
    #[serde(default)]
    holds: Vec<String>,
    /// Expressions that are false for the review below.
    #[serde(default)]
    fails: Vec<String>,
    /// Expressions without a value for the review below, which therefore deny.
    #[serde(default)]
    errors: Vec<String>,
    /// Expressions that the compiler refuses, with the reason and a part of the message.
    #[serde(default)]
    refused: Vec<(String, String, String)>,
}

fn review() -> Review {
    review_of("web")
}

fn review_of(name: &str) -> Review {
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"owner": "me", "a.b/c": "x"}, "annotations": null},
        "spec": {"replicas": 3, "weight": 1.5, "whole": 2.0, "huge": 9_223_372_036_854_775_807_u64, "paused": false,
                 "containers": [{"name": "a", "image": "r.example/a:1"}, {"name": "b", "image": "b"}], "none": []},
    });
    let request = json!({
        "uid": "u", "operation": "CREATE", "name": name, "namespace": "default",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "userInfo": {"username": "alice", "groups": ["dev"]},
        "object": object, "oldObject": null,
    });
    Review::admission(Bytes::from(json!({"request": request}).to_string())).unwrap()
}

fn params() -> Value {
    json!({"max": 5, "registries": ["r.example/"]})
}

fn validation(expression: &str) -> Validation {
    Validation { expression: expression.into(), ..Validation::default() }
}

fn compile(expression: &str) -> Result<Program, CompileError> {
    Program::compile(vec![validation(expression)], &params())
}

async fn evaluate(expression: &str) -> Result<Verdict, EvaluationError> {
    let program = compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    program.evaluate(&review(), Deadline::after(Duration::from_mins(1))).await
}

#[tokio::test]
async fn expressions_have_the_expected_values() {
    let cases: Vec<Case> = serde_yaml::from_str(include_str!("../../cases/cel.yaml")).unwrap();
    for case in cases {
        let name = &case.name;
        for expression in &case.holds {
            assert_eq!(evaluate(expression).await, Ok(Verdict::allow()), "{name}: {expression}");
        }
        for expression in &case.fails {
            let verdict = evaluate(expression).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(verdict.message, Some(format!("failed expression: {expression}")), "{name}");
            assert_eq!((verdict.allowed, verdict.code), (false, Some(422)), "{name}: {expression}");
        }
        for expression in &case.errors {
            let Err(EvaluationError::Failed(message)) = evaluate(expression).await else {
                panic!("{name}: {expression} has a value")
            };
            assert!(message.contains(&format!("{expression:?}")), "{name}: {message} names the expression");
        }
        for (expression, reason, part) in &case.refused {
            let Err(error) = compile(expression) else { panic!("{name}: {expression} compiled") };
            let message = error.to_string();
            assert!(
                error.reason().as_str() == reason.as_str() && message.contains(part.as_str()),
                "{name}: {expression}: {error:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_first_failed_validation_sets_the_message_and_all_are_causes() {
    let with_message = |expression: &str, message: &str, reason: &str| Validation {
        expression: expression.into(),
        message: Some(message.into()),
        reason: Some(reason.into()),
        ..Validation::default()
    };
    let validations = vec![
        with_message("true", "unused", "Invalid"),
        with_message("object.spec.replicas > params.max", "too few", "Forbidden"),
        validation("object.kind\n  == 'Pod'"),
    ];
    let program = Program::compile(validations, &params()).unwrap();
    let verdict = program.evaluate(&review(), Deadline::after(Duration::from_mins(1))).await.unwrap();
    assert_eq!(verdict.message.as_deref(), Some("too few"));
    assert_eq!((verdict.reason.as_deref(), verdict.code), (Some("Forbidden"), Some(403)));
    let causes: Vec<&str> = verdict.causes.iter().map(|cause| cause.message.as_str()).collect();
    assert_eq!(causes, ["too few", "failed expression: object.kind == 'Pod'"]);
}

#[tokio::test]
async fn reasons_have_the_same_codes_as_in_kubernetes() {
    for (reason, code) in [("Unauthorized", 401), ("Forbidden", 403), ("Invalid", 422), ("RequestEntityTooLarge", 413)]
    {
        let validation = Validation { reason: Some(reason.into()), ..validation("false") };
        let program = Program::compile(vec![validation], &json!({})).unwrap();
        let verdict = program.evaluate(&review(), Deadline::after(Duration::from_mins(1))).await.unwrap();
        assert_eq!((verdict.reason.as_deref(), verdict.code), (Some(reason), Some(code)));
        assert!(verdict.causes.is_empty(), "a single failure has no causes");
    }
    let unknown = Validation { reason: Some("Teapot".into()), ..validation("false") };
    assert!(matches!(Program::compile(vec![unknown], &json!({})), Err(CompileError::Invalid(_))));
}

#[tokio::test]
async fn an_empty_message_is_like_a_missing_message() {
    let validation = Validation { message: Some(String::new()), ..validation("false") };
    let program = Program::compile(vec![validation], &json!({})).unwrap();
    let verdict = program.evaluate(&review(), Deadline::after(Duration::from_mins(1))).await.unwrap();
    assert_eq!(verdict.message.as_deref(), Some("failed expression: false"));
}

#[tokio::test]
async fn a_program_without_validations_allows_everything() {
    let program = Program::compile(Vec::new(), &json!({})).unwrap();
    assert_eq!(program.evaluate(&review(), Deadline::after(Duration::ZERO)).await, Ok(Verdict::allow()));
}

#[tokio::test]
async fn a_missing_object_and_missing_parameters_are_null() {
    let body = json!({"request": {"uid": "u", "operation": "DELETE", "oldObject": {"a": 1}, "object": null,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}}});
    let review = Review::admission(Bytes::from(body.to_string())).unwrap();
    let expression = "object == null && oldObject.a == 1 && params == null && request.operation == 'DELETE'";
    let program = Program::compile(vec![validation(expression)], &Value::Null).unwrap();
    assert_eq!(program.evaluate(&review, Deadline::after(Duration::from_mins(1))).await, Ok(Verdict::allow()));
}

/// Nested loops over lists of 400 elements: at least 10¹⁰ iterations, with each macro. Each iteration is slow, so that the limit
/// on iterations would be reached only after many minutes.
#[tokio::test]
async fn loops_end_at_the_deadline() {
    let params = json!({"list": (0..400).collect::<Vec<_>>(), "text": "a".repeat(1 << 14)});
    for (begin, is_found, end) in [
        ("all(a, ", "", ")"),
        ("exists(a, ", "!", ")"),
        ("exists_one(a, ", "!", ")"),
        ("map(a, ", "", ").size() >= 0"),
        ("map(a, true, ", "", ").size() >= 0"),
        ("filter(a, ", "", ").size() >= 0"),
    ] {
        let step = format!("{is_found}(params.text.split('a').size() > 0)");
        let loops = (0..4).fold(step, |body, _| format!("params.list.{begin}{body}{end}"));
        let expression = format!("request.name == 'short' || {loops}");
        let program = Program::compile(vec![validation(&expression)], &params).unwrap();
        let (review, deadline) = (review(), Deadline::after(Duration::from_secs(1)));
        let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded), "{expression}");
        // More evaluations than may run at once: the loops occupy all places.
        let (mut loops, places) = (JoinSet::new(), Places::new());
        let deadline = Deadline::after(Duration::from_millis(500));
        for _ in 0..600 {
            let (program, review, places) = (program.clone(), review.clone(), places.clone());
            loops.spawn(async move { places.run(deadline, program.evaluate(&review, deadline)).await });
        }
        let ended = loops.join_all().await;
        assert!(
            ended.contains(&Err(EvaluationError::Overloaded(Shortage::Cpu))),
            "all evaluations ran at once: {expression}"
        );
        let are_late = |it: &_| matches!(it, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded(_)));
        assert!(ended.iter().all(are_late), "{expression}: {ended:?}");
        // The places are free again: a loop that continued would keep its place.
        let (ample, review) = (Deadline::after(Duration::from_mins(1)), review_of("short"));
        let short = places.run(ample, program.evaluate(&review, ample)).await;
        assert_eq!(short, Ok(Verdict::allow()), "{expression}");
    }
}

#[test]
fn expressions_that_exceed_a_limit_are_refused_when_compiled() {
    for expression in [
        "(".repeat(5000),
        "[".repeat(5000),
        "!".repeat(5000) + "true",
        format!("0{} == 0", "+0".repeat(5000)),
        format!("object{} == 0", ".a".repeat(5000)),
        format!("{}true", "true ? false : ".repeat(600)),
        format!("object.{}", "all(a, a.".repeat(500)),
        "true || ".repeat(5000) + "true",
        "'\n".to_owned() + "0" + &"+0".repeat(8000),
        "ar'\\'' + 0".to_owned() + &"+0".repeat(7900),
        "'\\z' + 0".to_owned() + &"+0".repeat(7900),
        format!("1r'\\' + 0{}'", "+0".repeat(7900)),
    ] {
        let started = Instant::now();
        assert!(compile(&expression).is_err(), "{}", &expression[..40]);
        assert!(started.elapsed() < Duration::from_secs(20), "{}", &expression[..40]);
    }
}

/// The deepest expressions below the limits must not overflow the stack of a normal thread.
#[tokio::test]
async fn expressions_just_below_the_limits_run() {
    let sum = format!("0{}", " + 0".repeat(60));
    for expression in [
        format!("{}true{}", "(".repeat(24), ")".repeat(24)),
        format!("{sum} == 0"),
        format!("{}true", "!".repeat(60)),
        vec!["true"; 1500].join(" && "),
        format!("{}true", "true ? true : ".repeat(30)),
        (0..8).fold(format!("({sum}) == 0"), |body, n| format!("[0].all(x{n}, {}{body})", "!!".repeat(20))),
    ] {
        match compile(&expression) {
            Ok(program) => {
                let verdict = program.evaluate(&review(), Deadline::after(Duration::from_mins(1))).await;
                assert_eq!(verdict, Ok(Verdict::allow()), "{expression}");
            }
            Err(error) => panic!("{expression}: {error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_expressions_do_not_end_the_process(expression in "[\\[\\]{}()a-c\"'`%#.:=+?!|&<0-9 \n\\\\-]{0,40}") {
        let _ = compile(&expression);
    }

    /// As in Kubernetes, a number without a fraction is an int, and arithmetic on ints is exact.
    #[test]
    fn integers_stay_integers(number in any::<i32>()) {
        let program = Program::compile(
            vec![validation(&format!("params.n + 1 == {} && type(params.n) == int", i64::from(number) + 1))],
            &json!({"n": number}),
        ).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let verdict = runtime.block_on(program.evaluate(&review(), Deadline::after(Duration::from_mins(1))));
        prop_assert_eq!(verdict, Ok(Verdict::allow()));
    }
}
