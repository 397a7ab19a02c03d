//! Runs `cases/cel/*.yaml`: expressions with the libraries of Kubernetes. `e2e/tests/cel.rs` evaluates the same expressions on
//! an API server.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use proviso_core::Review;
use proviso_engines::cel::{Program, Validation};
use proviso_engines::{Deadline, EvaluationError};
use serde_json::{Value, json};

use super::cases::{Answer, Question, questions};

fn review() -> Review {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "case-0", "namespace": "default"},
        "data": {"a": "1", "empty": ""},
    });
    let request = json!({
        "uid": "u", "operation": "CREATE", "name": "case-0", "namespace": "default", "dryRun": true,
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "userInfo": {"username": "alice", "groups": ["dev"]},
        "object": object, "oldObject": null,
    });
    Review::admission(Bytes::from(json!({"request": request}).to_string())).unwrap()
}

async fn evaluate(expression: &str) -> (Answer, String) {
    let validation = Validation { expression: expression.into(), ..Validation::default() };
    let program = match Program::compile(vec![validation], &Value::Null) {
        Ok(program) => program,
        Err(error) => return (Answer::Errors, error.to_string()),
    };
    match program.evaluate(&review(), Deadline::after(Duration::from_mins(1))).await {
        Ok(verdict) if verdict.allowed => (Answer::Holds, String::new()),
        Ok(_) => (Answer::Fails, String::new()),
        Err(EvaluationError::Failed(why)) => (Answer::Errors, why),
        Err(other) => panic!("{expression}: {other}"),
    }
}

#[tokio::test]
async fn libraries_give_the_expected_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/cel");
    let questions = questions(&folder, |difference| difference.here).unwrap();
    let mut wrong = Vec::new();
    for Question { case, expression, wanted } in &questions {
        let (answer, why) = evaluate(expression).await;
        let is_missing = why.contains("no function") || why.contains("no variable");
        if answer != *wanted || is_missing {
            wrong.push(format!("{case}: {expression}: {answer:?}, not {wanted:?} {why}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), questions.len(), wrong.join("\n"));
    assert!(questions.len() > 200, "only {} expressions were found", questions.len());
}
