//! Request policies in each engine: the input that a program reads, and the result that it returns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_core::request::{Chain, Criteria, Level, Progress, Request, RequestPolicy, RevisionId};
use proviso_engines::rego::Dialect;
use proviso_engines::{CompileError, Deadline, EvaluationError, Program, cel, group, rego};
use serde_json::{Value, json};

const ALLOW: &str = "package dcm.policy.allow\nresult := {}";

/// Returns the chain of two policies for a request of the user `ana` and the tenant `blue`. The first policy has constrained the
/// memory, and chosen the provider `east`.
fn chain() -> Box<Chain> {
    let policy = |name: &str, priority| RequestPolicy {
        revision: RevisionId { policy: PolicyId::cluster(name).unwrap(), generation: 1 },
        level: Level::Global,
        priority,
        criteria: Criteria::default(),
    };
    let payload = json!({"service_type": "vm", "cpu": 2});
    let request = Request::new(payload, Some("blue".into()), Some("ana".into())).unwrap();
    let progress = Chain::start(request, [policy("first", 1), policy("second", 2)], Arc::default());
    let Progress::Next(chain) = progress else { panic!("no policy covers the request") };
    let result =
        json!({"patch": {"memory": 4}, "constraints": {"memory": {"maximum": 8}}, "selected_provider": "east"});
    let Progress::Next(chain) = chain.apply(Ok(Some(result))) else { panic!("the chain has ended") };
    chain
}

async fn evaluate(program: &Program) -> Result<Option<Value>, EvaluationError> {
    program.evaluate_request(&chain(), Deadline::after(Duration::from_mins(1))).await
}

fn compile_rego(source: &str) -> Result<Program, CompileError> {
    let settings = json!({"limit": 3});
    rego::Program::compile(source, Dialect::Request, None, &settings).map(Program::Rego)
}

fn rego(source: &str) -> Program {
    compile_rego(source).unwrap()
}

fn cel(validation: &str, result: Option<&str>) -> Program {
    let validations = vec![cel::Validation { expression: validation.into(), ..cel::Validation::default() }];
    let source = cel::Source { validations, result: result.map(Into::into), ..cel::Source::default() };
    Program::Cel(cel::Program::compile(source, &json!({"limit": 3})).unwrap())
}

#[tokio::test]
async fn rego_with_the_rule_result_reads_the_input_of_the_adr() {
    let program = rego("package dcm.policy.p\nresult := {\"patch\": {\"input\": input}}");
    let expected = json!({
        "originalPayload": {"service_type": "vm", "cpu": 2},
        "payload": {"service_type": "vm", "cpu": 2, "memory": 4},
        "constraints": {"memory": {"maximum": 8}},
        "user": "ana",
        "tenant": "blue",
        "serviceProvider": {"value": "east", "constraints": {"patterns": []}},
        "parameters": {"limit": 3},
    });
    assert_eq!(evaluate(&program).await, Ok(Some(json!({"patch": {"input": expected}}))));
}

#[tokio::test]
async fn rego_with_the_rule_main_reads_the_input_of_the_published_api() {
    let program = rego("package any.name\nmain := {\"patch\": {\"input\": input}}");
    let expected = json!({
        "spec": {"service_type": "vm", "cpu": 2, "memory": 4},
        "provider": "east",
        "constraints": {"memory": {"maximum": 8}},
        "parameters": {"limit": 3},
    });
    assert_eq!(evaluate(&program).await, Ok(Some(json!({"patch": {"input": expected}}))));
}

#[tokio::test]
async fn the_package_decides_between_two_rules() {
    let both = |package: &str| {
        rego(&format!("package {package}\nresult := {{\"reason\": \"adr\"}}\nmain := {{\"reason\": \"published\"}}"))
    };
    assert_eq!(evaluate(&both("dcm.policy.a")).await, Ok(Some(json!({"reason": "adr"}))));
    assert_eq!(evaluate(&both("policies.a")).await, Ok(Some(json!({"reason": "published"}))));
}

#[tokio::test]
async fn an_undefined_result_is_none_and_a_conflict_is_a_failure() {
    assert_eq!(evaluate(&rego("package a\nresult := {} if input.payload.cpu > 100")).await, Ok(None));
    let conflict = rego(
        "package a\nresult := {\"reason\": \"a\"} if input.payload.cpu > 1\nresult := {} if input.payload.cpu > 1",
    );
    assert!(matches!(evaluate(&conflict).await, Err(EvaluationError::Failed(_))));
}

#[test]
fn rego_without_a_result_is_refused() {
    let error = compile_rego("package a\ndeny[\"no\"] { true }").unwrap_err().to_string();
    assert!(error.contains("package a has neither the rule result nor main"), "{error}");
}

#[tokio::test]
async fn an_entrypoint_names_the_rule_and_need_not_exist() {
    let compile = |source: &str, entrypoint: &str| {
        rego::Program::compile(source, Dialect::Request, Some(entrypoint), &json!({})).map(Program::Rego)
    };
    let both = "package dcm.policy.a\nresult := {\"reason\": \"adr\"}\nmain := {\"reason\": input.provider}";
    let published = compile(both, "main").unwrap();
    assert_eq!(evaluate(&published).await, Ok(Some(json!({"reason": "east"}))));
    assert_eq!(evaluate(&compile(both, "result").unwrap()).await, Ok(Some(json!({"reason": "adr"}))));
    assert_eq!(evaluate(&compile("package test\nallow = true", "main").unwrap()).await, Ok(None));
    let error = compile(both, "data.dcm.policy.a.main").unwrap_err().to_string();
    assert!(error.contains("is neither result nor main"), "{error}");
}

#[tokio::test]
async fn rego_of_another_dialect_is_no_request_policy() {
    let source = "package a\ndeny[\"no\"] { input.request.a }";
    let program = Program::Rego(rego::Program::compile(source, Dialect::Admission, None, &json!({})).unwrap());
    let error = evaluate(&program).await.unwrap_err().to_string();
    assert!(error.contains("needs the dialect Request"), "{error}");
}

#[tokio::test]
async fn a_validation_that_is_false_rejects_the_request() {
    let program = cel("object.cpu < 2", Some("{'patch': {'cpu': 1}}"));
    let expected = json!({"reject": true, "reason": "failed expression: object.cpu < 2"});
    assert_eq!(evaluate(&program).await, Ok(Some(expected)));
}

#[tokio::test]
async fn the_result_of_cel_is_a_map_or_null() {
    for (result, expected) in [
        (None, Ok(Some(json!({})))),
        (Some("null"), Ok(None)),
        (
            Some("{'patch': {'cpu': params.limit}, 'constraints': {'cpu': {'maximum': object.memory}}}"),
            Ok(Some(json!({"patch": {"cpu": 3}, "constraints": {"cpu": {"maximum": 4}}}))),
        ),
        (Some("{'reason': request.user + request.tenant}"), Ok(Some(json!({"reason": "anablue"})))),
        (Some("1"), Err("the value is a int, not a map or null")),
    ] {
        let found = evaluate(&cel("request.serviceProvider.value == 'east'", result)).await;
        match expected {
            Ok(expected) => assert_eq!(found, Ok(expected), "{result:?}"),
            Err(words) => assert!(found.unwrap_err().to_string().contains(words), "{result:?}"),
        }
    }
}

#[tokio::test]
async fn a_group_accepts_or_rejects() {
    let members = || {
        BTreeMap::from([
            ("allow".to_owned(), Arc::new(rego(ALLOW))),
            ("undefined".to_owned(), Arc::new(cel("true", Some("null")))),
            ("reject".to_owned(), Arc::new(rego("package a\nresult := {\"reject\": true, \"reason\": \"too big\"}"))),
            ("patch".to_owned(), Arc::new(rego("package a\nresult := {\"patch\": {\"cpu\": 1}}"))),
            ("wrong".to_owned(), Arc::new(rego("package a\nresult := {\"patched\": {}}"))),
        ])
    };
    let group = |expression: &str| Program::Group(group::Program::new(members(), expression, "no".into()).unwrap());
    for (expression, expected) in [
        ("allow() && undefined()", Ok(json!({}))),
        ("reject() || allow()", Ok(json!({}))),
        ("reject()", Ok(json!({"reject": true, "reason": "no; too big"}))),
        (
            "patch()",
            Ok(
                json!({"reject": true, "reason": "no; the policy patched or constrained the request, or chose a provider, \
                       but a member of a group may only reject"}),
            ),
        ),
        ("wrong()", Err("member wrong: the field `patched` of the result is unknown")),
    ] {
        let found = evaluate(&group(expression)).await;
        match expected {
            Ok(expected) => assert_eq!(found, Ok(Some(expected)), "{expression}"),
            Err(words) => {
                let error = found.unwrap_err().to_string();
                assert!(error.contains(words), "{expression}: {error}");
            }
        }
    }
}

#[cfg(feature = "wasm")]
mod wasm {
    use proviso_engines::wasm::ExecutionMode::{Gatekeeper, Opa};

    use super::super::wasm::{Guest, Rego};
    use super::*;

    #[tokio::test]
    async fn a_module_returns_its_result_as_the_mutated_object() {
        for (answer, expected) in [
            (r#"{"accepted":true}"#, json!({})),
            (r#"{"accepted":true,"mutated_object":{"patch":{"cpu":1}}}"#, json!({"patch": {"cpu": 1}})),
            (r#"{"accepted":false,"message":"no"}"#, json!({"reject": true, "reason": "no"})),
        ] {
            let program = Program::Wasm(Guest::answering(answer).program());
            assert_eq!(evaluate(&program).await, Ok(Some(expected)), "{answer}");
        }
    }

    #[tokio::test]
    async fn compiled_rego_returns_its_result_as_it_is() {
        let program = |answer: &str, mode| Program::Wasm(Rego::answering(answer).program(mode));
        let result = json!({"patch": {"cpu": 1}});
        assert_eq!(evaluate(&program(r#"[{"result":{"patch":{"cpu":1}}}]"#, Opa)).await, Ok(Some(result)));
        assert_eq!(evaluate(&program("[]", Opa)).await, Ok(None));
        let error = evaluate(&program("[]", Gatekeeper)).await.unwrap_err().to_string();
        assert!(error.contains("needs the mode opa"), "{error}");
    }
}
