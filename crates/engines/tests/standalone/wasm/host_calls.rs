//! What guests may ask of their host.

use std::sync::Arc;

use proviso_core::Verdict;
use proviso_engines::{EvaluationError, SettingsError};

use super::guest::{Guest, create, soon};
use super::world::World;

/// Calls the host, and fails with the error text of the host where the call is refused.
fn calling_host(namespace: &str, operation: &str, message: &str) -> Guest {
    let lengths = [namespace.len(), operation.len(), message.len()];
    let [namespace_len, operation_len, message_len] = lengths;
    Guest::calling(&format!(
        "(if (call $host_call (i32.const 0) (i32.const 10) (i32.const 100) (i32.const {namespace_len})
                              (i32.const 200) (i32.const {operation_len}) (i32.const 300) (i32.const {message_len}))
           (then
             (call $host_response (i32.const 400))
             (if (call $host_response_len) (then unreachable))
             (call $respond (i32.const 1024) (i32.const 17))
             (return (i32.const 1))))
         (call $host_error (i32.const 2048))
         (call $fail (i32.const 2048) (call $host_error_len))
         (i32.const 0)"
    ))
    .data(0, "kubewarden")
    .data(100, namespace)
    .data(200, operation)
    .data(300, message)
    .data(1024, r#"{"accepted":true}"#)
}

/// Calls the host, and fails with its answer.
fn telling_answer(operation: &str, message: &str) -> Guest {
    let (operation_len, message_len) = (operation.len(), message.len());
    Guest::calling(&format!(
        "(if (i32.eqz (call $host_call (i32.const 0) (i32.const 10) (i32.const 100) (i32.const 3)
                              (i32.const 200) (i32.const {operation_len}) (i32.const 300) (i32.const {message_len})))
           (then unreachable))
         (if (call $host_error_len) (then unreachable))
         (call $host_response (i32.const 2048))
         (call $fail (i32.const 2048) (call $host_response_len))
         (i32.const 0)"
    ))
    .data(0, "kubewarden")
    .data(100, "oci")
    .data(200, operation)
    .data(300, message)
}

async fn asking(guest: Guest) -> String {
    let program = guest.program().with_host(Arc::new(World::default()));
    program.evaluate(&create(), soon()).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_host_answers_or_says_why_not() {
    let answer = asking(telling_answer("echo", r#"{"a":1}"#)).await;
    assert_eq!(answer, r#"internal server error: {"a":1}"#);
    let refusal = asking(calling_host("oci", "v1/verify", "{}")).await;
    assert_eq!(refusal, "internal server error: kubewarden/oci/v1/verify: no");
}

#[tokio::test]
async fn an_answer_that_does_not_fit_into_the_guest_ends_the_evaluation() {
    let text = asking(telling_answer("long", "")).await;
    assert!(text.contains("__host_response") && text.contains("outside its memory"), "{text}");
}

#[tokio::test]
async fn settings_may_be_validated_with_the_help_of_the_host() {
    let program = telling_answer("echo", "x").program().with_host(Arc::new(World::default()));
    let error = program.validate_settings(soon()).await.unwrap_err();
    assert_eq!(error, SettingsError::Unanswered(EvaluationError::Failed("x".into())));
}

#[tokio::test]
async fn host_capabilities_are_refused_by_name() {
    let text = calling_host("kubernetes", "get_resource", "{}").failure().await;
    assert_eq!(text, "kubewarden/kubernetes/get_resource: this policy may not call the host");
}

#[tokio::test]
async fn the_log_is_always_there() {
    for message in [r#"{"level":"INFO","message":"hello","data":{}}"#, "no json"] {
        assert_eq!(calling_host("tracing", "log", message).evaluate().await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn the_console_is_always_there() {
    let guest = Guest::calling(
        "(call $console_log (i32.const 0) (i32.const 100000))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)",
    );
    assert_eq!(guest.data(1024, r#"{"accepted":true}"#).evaluate().await, Ok(Verdict::allow()));
}
