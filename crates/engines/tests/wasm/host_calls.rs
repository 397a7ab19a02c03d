//! What guests may ask of their host.

use proviso_core::Verdict;

use crate::guest::Guest;

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

#[tokio::test]
async fn host_capabilities_are_refused_by_name() {
    let text = calling_host("kubernetes", "get_resource", "{}").failure().await;
    assert_eq!(text, "kubewarden/kubernetes/get_resource is not available: host capabilities are not supported yet");
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
