//! Calls from guests to their host.

use std::sync::Arc;

use proviso_core::Verdict;
use proviso_engines::{EvaluationError, SettingsError};

use super::guest::{Guest, create_review, long_deadline};
use super::test_host::TestHost;

/// Returns a guest that calls the host. The guest accepts the request after an answer, and fails with the host's error text
/// after an error.
fn calling_host(namespace: &str, operation: &str, message: &str) -> Guest {
    let lengths = [namespace.len(), operation.len(), message.len()];
    let [namespace_len, operation_len, message_len] = lengths;
    Guest::with_body(&format!(
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

/// Returns a guest that calls the host and fails with the host's answer as the error.
fn failing_with_answer(operation: &str, message: &str) -> Guest {
    let (operation_len, message_len) = (operation.len(), message.len());
    Guest::with_body(&format!(
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

/// Evaluates a review with the test host and returns the error.
async fn failure(guest: Guest) -> String {
    let program = guest.program().with_host(Arc::new(TestHost::default()));
    program.evaluate(&create_review(), long_deadline()).await.unwrap_err().to_string()
}

#[tokio::test]
async fn the_guest_gets_the_answer_or_the_error_of_the_host() {
    let answer = failure(failing_with_answer("echo", r#"{"a":1}"#)).await;
    assert_eq!(answer, r#"internal server error: {"a":1}"#);
    let refusal = failure(calling_host("oci", "v1/verify", "{}")).await;
    assert_eq!(refusal, "internal server error: kubewarden/oci/v1/verify: no");
}

#[tokio::test]
async fn an_answer_larger_than_the_guests_memory_ends_the_evaluation() {
    let text = failure(failing_with_answer("long", "")).await;
    assert!(text.contains("__host_response") && text.contains("outside its memory"), "{text}");
}

#[tokio::test]
async fn a_guest_may_call_the_host_while_it_validates_its_settings() {
    let program = failing_with_answer("echo", "x").program().with_host(Arc::new(TestHost::default()));
    let error = program.validate_settings(long_deadline()).await.unwrap_err();
    assert_eq!(error, SettingsError::EvaluationFailed(EvaluationError::Failed("x".into())));
}

#[tokio::test]
async fn the_refusal_of_a_host_call_names_the_capability() {
    let text = calling_host("kubernetes", "get_resource", "{}").failure().await;
    assert_eq!(text, "kubewarden/kubernetes/get_resource: this policy may not call the host");
}

#[tokio::test]
async fn every_guest_may_log() {
    for message in [r#"{"level":"INFO","message":"hello","data":{}}"#, "no json"] {
        assert_eq!(calling_host("tracing", "log", message).evaluate().await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn every_guest_may_write_to_the_console() {
    let guest = Guest::with_body(
        "(call $console_log (i32.const 0) (i32.const 100000))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)",
    );
    assert_eq!(guest.data(1024, r#"{"accepted":true}"#).evaluate().await, Ok(Verdict::allow()));
}
