//! Runs `cases/cel/*.yaml`: what Kubernetes' libraries make of their arguments. `e2e/tests/cel.rs` puts the same questions
//! to an API server.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use proviso_core::Review;
use proviso_engines::cel::{Program, Validation};
use proviso_engines::{Deadline, EvaluationError};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    holds: Vec<String>,
    #[serde(default)]
    fails: Vec<String>,
    /// Each has no value, or does not compile.
    #[serde(default)]
    errors: Vec<String>,
    /// Each is answered otherwise by an API server.
    #[serde(default)]
    differs: Vec<Difference>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    expression: String,
    here: Answer,
    #[allow(dead_code, reason = "for the test with an API server")]
    kubernetes: Answer,
    #[allow(dead_code, reason = "for those who read")]
    why: String,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Holds,
    Fails,
    Errors,
}

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

async fn ask(expression: &str) -> (Answer, String) {
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
async fn libraries_answer_as_their_cases_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/cel");
    let (mut asked, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let cases: Vec<Case> = serde_yaml::from_str(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for case in cases {
            let all = case.holds.into_iter().map(|expression| (expression, Answer::Holds));
            let all = all.chain(case.fails.into_iter().map(|expression| (expression, Answer::Fails)));
            let all = all.chain(case.errors.into_iter().map(|expression| (expression, Answer::Errors)));
            let all = all.chain(case.differs.into_iter().map(|it| (it.expression, it.here)));
            for (expression, wanted) in all {
                asked += 1;
                let (answer, why) = ask(&expression).await;
                let is_missing = why.contains("no function") || why.contains("no variable");
                if answer != wanted || is_missing {
                    wrong.push(format!("{}: {expression}: {answer:?}, not {wanted:?} {why}", case.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {asked}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(asked > 200, "only {asked} expressions were found");
}
