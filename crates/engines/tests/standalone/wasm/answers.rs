//! The messages that guests get, and the meaning of their answers.

use proviso_core::Verdict;
use proviso_engines::wasm::Program;
use proviso_engines::{EvaluationError, SettingsError};
use serde_json::json;

use super::guest::{Guest, create_review, long_deadline, review};

/// Returns a guest that fails with its operation and its message as the error.
fn echo() -> Guest {
    Guest::with_body(
        "(call $request (i32.const 1024) (i32.add (i32.const 1024) (local.get $operation_len)))
         (call $fail (i32.const 1024) (i32.add (local.get $operation_len) (local.get $message_len)))
         (i32.const 0)",
    )
}

#[tokio::test]
async fn an_accepted_request_is_allowed() {
    assert_eq!(Guest::answering(r#"{"accepted":true}"#).evaluate().await, Ok(Verdict::allow()));
}

#[tokio::test]
async fn a_denial_has_the_policys_message_code_annotations_and_warnings() {
    let answer = r#"{"accepted":false,"message":"no","code":422,"audit_annotations":{"k":"v"},"warnings":["w"]}"#;
    let verdict = Guest::answering(answer).evaluate().await.unwrap();
    let expected = Verdict {
        code: Some(422),
        audit_annotations: [("k".into(), "v".into())].into(),
        warnings: vec!["w".into()],
        ..Verdict::deny("no")
    };
    assert_eq!(verdict, expected);
}

#[tokio::test]
async fn a_mutated_object_becomes_a_patch() {
    let answer = r#"{"accepted":true,"mutated_object":{"metadata":{"name":"a","labels":{"l":"1"}},"list":[1,2]}}"#;
    let verdict = Guest::answering(answer).evaluate().await.unwrap();
    assert!(verdict.allowed);
    let expected = json!([{"op": "add", "path": "/metadata/labels", "value": {"l": "1"}}]);
    assert_eq!(serde_json::to_value(verdict.patch).unwrap(), expected);
}

#[tokio::test]
async fn an_unchanged_object_gives_no_patch() {
    for same in ["null", r#"{ "list":[1,2], "metadata":{"name":"a"}}"#] {
        let answer = format!(r#"{{"accepted":true,"mutated_object":{same},"message":null,"warnings":null}}"#);
        assert_eq!(Guest::answering(&answer).evaluate().await, Ok(Verdict::allow()), "{same}");
    }
}

#[tokio::test]
async fn a_denial_never_patches() {
    let verdict = Guest::answering(r#"{"accepted":false,"mutated_object":{}}"#).evaluate().await.unwrap();
    assert_eq!(verdict, Verdict::default());
}

#[tokio::test]
async fn a_mutation_of_a_request_without_an_object_is_refused() {
    let delete = review(r#"{"uid":"u","operation":"DELETE","object":null,"oldObject":{}}"#);
    let program = Guest::answering(r#"{"accepted":true,"mutated_object":{}}"#).program();
    let error = program.evaluate(&delete, long_deadline()).await.unwrap_err();
    assert!(
        matches!(&error, EvaluationError::InvalidAnswer(text) if text.contains("the request has no object")),
        "{error}"
    );
}

#[tokio::test]
async fn the_payload_is_the_request_without_nulls_and_the_settings() {
    let program = Program::new(echo().load().unwrap(), *br#"{"a": 1}"#);
    let update = review(r#"{"uid":"u", "object":{"b": null},"oldObject":null,"dryRun":null}"#);
    let error = program.evaluate(&update, long_deadline()).await.unwrap_err();
    let message = r#"validate{"request":{"uid":"u", "object":{"b": null}},"settings":{"a": 1}}"#;
    assert_eq!(error, EvaluationError::Failed(message.into()));
    let error = program.validate_settings(long_deadline()).await.unwrap_err();
    let message = r#"validate_settings{"a": 1}"#;
    assert_eq!(error, SettingsError::EvaluationFailed(EvaluationError::Failed(message.into())));
}

#[tokio::test]
async fn a_payload_larger_than_the_guests_memory_fails_the_evaluation() {
    let big = review(&format!(r#"{{"uid":"u","object":"{}"}}"#, "x".repeat(200 << 10)));
    let error = echo().program().evaluate(&big, long_deadline()).await.unwrap_err();
    assert!(error.to_string().contains("__guest_request"), "{error}");
}

#[tokio::test]
async fn the_policys_own_error_is_reported() {
    let guest = Guest::with_body("(call $fail (i32.const 0) (i32.const 7)) (i32.const 0)").data(0, "not now");
    assert_eq!(guest.failure().await, "not now");
}

#[tokio::test]
async fn a_long_error_text_is_truncated() {
    let guest = Guest::with_body("(call $fail (i32.const 0) (i32.const 100000)) (i32.const 0)");
    assert!(guest.failure().await.len() < 1100);
}

#[tokio::test]
async fn a_missing_answer_fails_the_evaluation() {
    assert_eq!(Guest::with_body("(i32.const 1)").failure().await, "the policy gave no answer");
    assert_eq!(Guest::with_body("(i32.const 0)").failure().await, "the policy failed and gave no reason");
    let answered = Guest::with_body("(call $respond (i32.const 0) (i32.const 17)) (i32.const 0)");
    assert_eq!(answered.data(0, r#"{"accepted":true}"#).failure().await, "the policy failed and gave no reason");
}

#[tokio::test]
async fn malformed_answers_are_invalid() {
    let deep = format!(r#"{{"accepted":true,"mutated_object":{}{}}}"#, "[".repeat(50_000), "]".repeat(50_000));
    for answer in
        ["", "yes", "{}", r#"{"accepted":1}"#, r#"{"accepted":true} x"#, r#"{"accepted":false,"code":70000}"#, &deep]
    {
        let error = Guest::answering(answer).evaluate().await.unwrap_err();
        assert!(matches!(error, EvaluationError::InvalidAnswer(_)), "{answer:.40}: {error}");
    }
}

#[tokio::test]
async fn settings_are_accepted_or_refused_with_the_policys_message() {
    assert_eq!(Guest::answering(r#"{"valid":true}"#).validate_settings().await, Ok(()));
    let refused = Guest::answering(r#"{"valid":false,"message":"`max` is missing"}"#).validate_settings().await;
    assert_eq!(refused, Err(SettingsError::Refused("`max` is missing".into())));
    let silent = Guest::answering(r#"{"valid":false}"#).validate_settings().await;
    assert_eq!(silent, Err(SettingsError::Refused("it gave no reason".into())));
    let invalid = Guest::answering("{}").validate_settings().await;
    assert!(matches!(invalid, Err(SettingsError::EvaluationFailed(EvaluationError::InvalidAnswer(_)))), "{invalid:?}");
}

#[tokio::test]
async fn one_module_serves_policies_with_different_settings() {
    let module = echo().load().unwrap();
    for settings in ["{}", r#"{"x":2}"#] {
        let program = Program::new(module.clone(), settings.as_bytes());
        let error = program.evaluate(&create_review(), long_deadline()).await.unwrap_err();
        assert!(error.to_string().ends_with(&format!(r#""settings":{settings}}}"#)), "{error}");
    }
}
