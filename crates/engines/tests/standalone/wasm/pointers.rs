//! Addresses and lengths outside the guest's memory, in every function of waPC that takes them.

use super::guest::Guest;

#[tokio::test]
async fn addresses_outside_the_guests_memory_end_the_evaluation() {
    let name = "(i32.const 0) (i32.const 1)";
    for bad in ["(i32.const -1)", "(i32.const 131072)", "(i32.const 0x7fffffff)"] {
        for (function, code) in [
            ("__guest_request", format!("(call $request {bad} (i32.const 0))")),
            ("__guest_request", format!("(call $request (i32.const 0) {bad})")),
            ("__guest_response", format!("(call $respond {bad} (i32.const 1))")),
            ("__guest_error", format!("(call $fail {bad} (i32.const 1))")),
            ("__host_call", format!("(drop (call $host_call {bad} (i32.const 1) {name} {name} {name}))")),
            ("__host_call", format!("(drop (call $host_call {name} {bad} (i32.const 1) {name} {name}))")),
            ("__host_call", format!("(drop (call $host_call {name} {name} {bad} (i32.const 1) {name}))")),
            ("__host_call", format!("(drop (call $host_call {name} {name} {name} {bad} (i32.const 1)))")),
            ("__host_error", format!("(drop (call $host_call {name} {name} {name} {name})) (call $host_error {bad})")),
            ("__console_log", format!("(call $console_log {bad} (i32.const 1))")),
        ] {
            let text = Guest::with_body(&format!("{code} (i32.const 1)")).failure().await;
            assert!(text.contains(function) && text.contains("outside its memory"), "{code}: {text}");
        }
    }
}

#[tokio::test]
async fn lengths_beyond_the_guests_memory_end_the_evaluation() {
    for length in ["(i32.const -1)", "(i32.const 131073)", "(i32.const 0x7fffffff)"] {
        for (function, code) in [
            ("__guest_response", format!("(call $respond (i32.const 0) {length})")),
            ("__guest_error", format!("(call $fail (i32.const 0) {length})")),
            ("__console_log", format!("(call $console_log (i32.const 0) {length})")),
            (
                "__host_call",
                format!(
                    "(drop (call $host_call (i32.const 0) {length} (i32.const 0) {length}
                                            (i32.const 0) {length} (i32.const 0) {length}))"
                ),
            ),
        ] {
            let text = Guest::with_body(&format!("{code} (i32.const 1)")).failure().await;
            assert!(text.contains(function), "{code}: {text}");
        }
    }
}

#[tokio::test]
async fn an_answer_may_end_at_the_end_of_the_memory() {
    let guest = Guest::with_body("(call $respond (i32.const 131055) (i32.const 17)) (i32.const 1)");
    assert!(guest.data(131_055, r#"{"accepted":true}"#).evaluate().await.unwrap().allowed);
}
