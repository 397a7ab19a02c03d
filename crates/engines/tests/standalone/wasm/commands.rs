//! Policies that are WASI commands.

use std::sync::Arc;

use proviso_core::Verdict;
use proviso_engines::{EvaluationError, SettingsError};

use super::command::Command;
use super::guest::{create_review, long_deadline};
use super::test_host::TestHost;

const ALLOW: &str = r#"{"accepted":true}"#;

#[tokio::test]
async fn the_standard_output_of_a_command_is_its_answer() {
    assert_eq!(Command::writing(1, ALLOW, "").evaluate().await, Ok(Verdict::allow()));
    let deny = r#"{"accepted":false,"message":"no","code":418}"#;
    let denial = Verdict { code: Some(418), ..Verdict::deny("no") };
    assert_eq!(Command::writing(1, &format!("{deny}\n"), "(call $exit (i32.const 0))").evaluate().await, Ok(denial));
    let mutated = r#"{"accepted":true,"mutated_object":{"metadata":{"name":"b"},"list":[1,2]}}"#;
    assert_eq!(Command::writing(1, mutated, "").evaluate().await.unwrap().patch.unwrap().len(), 1);
}

#[tokio::test]
async fn request_and_settings_come_on_standard_input() {
    // The error of a command with an exit code quotes its standard error.
    let failing = Command::echoing(2, "").then("(call $exit (i32.const 3))");
    assert_eq!(
        failing.failure().await,
        r#"the policy exited with code 3: {"request":{"uid":"u","operation":"CREATE","object":{"metadata":{"name":"a"},"list":[1,2]}},"settings":{}}"#
    );
    let accepted = Command::echoing(1, "").with_settings(r#"{"valid":true}"#).validate_settings(long_deadline()).await;
    assert_eq!(accepted, Ok(()));
    let refused = Command::echoing(1, "")
        .with_settings(r#"{"valid":false,"message":"max is missing"}"#)
        .validate_settings(long_deadline())
        .await;
    assert_eq!(refused, Err(SettingsError::Refused("max is missing".into())));
}

#[tokio::test]
async fn the_operation_is_an_argument() {
    // The number and the length of the arguments are at 0 and 4, the pointers at 100 and the texts at 200. The second argument
    // starts after `policy.wasm` and a zero byte.
    let body = "
        (drop (call $sizes (i32.const 0) (i32.const 4)))
        (if (i32.ne (i32.load (i32.const 0)) (i32.const 2)) (then unreachable))
        (drop (call $arguments (i32.const 100) (i32.const 200)))
        (if (i32.ne (i32.load (i32.const 104)) (i32.const 212)) (then unreachable))
        (i32.store (i32.const 300) (i32.const 200))
        (i32.store (i32.const 304) (i32.load (i32.const 4)))
        (drop (call $write (i32.const 2) (i32.const 300) (i32.const 1) (i32.const 8)))
        (call $exit (i32.const 1))";
    let program = Command::with_body(body).program();
    let error = program.evaluate(&create_review(), long_deadline()).await.unwrap_err();
    assert_eq!(error, EvaluationError::Failed("the policy exited with code 1: policy.wasm\0validate\0".into()));
    let error = program.validate_settings(long_deadline()).await.unwrap_err();
    let message = "the policy exited with code 1: policy.wasm\0validate-settings\0";
    assert_eq!(error, SettingsError::EvaluationFailed(EvaluationError::Failed(message.into())));
}

#[tokio::test]
async fn a_command_reads_the_hosts_answers_after_the_request() {
    let call = |function: &str, operation: &str| {
        let length = operation.len();
        let call = format!(
            "(call ${function} (i32.const 1100) (i32.const 10) (i32.const 1200) (i32.const 3)
                (i32.const 1300) (i32.const {length}) (i32.const 1400) (i32.const 2))"
        );
        let body = format!("(i32.store (i32.const 500) {call})");
        Command::echoing(2, &body)
            .then("(call $exit (i32.load (i32.const 500)))")
            .data(1100, "kubewarden")
            .data(1200, "oci")
            .data(1300, operation)
            .data(1400, "42")
    };
    for function in ["call", "javy"] {
        let program = call(function, "fail").program().with_host(Arc::new(TestHost::default()));
        let error = program.evaluate(&create_review(), long_deadline()).await.unwrap_err().to_string();
        assert!(error.contains("exited with code 1") && error.ends_with("}kubewarden/oci/fail: no"), "{error}");
        // The exit code is the result of the host call. After an answer this is zero, so only the policy's answer is missing.
        let program = call(function, "echo").program().with_host(Arc::new(TestHost::default()));
        let error = program.evaluate(&create_review(), long_deadline()).await.unwrap_err().to_string();
        assert!(error.ends_with("the policy gave no answer"), "{error}");
    }
    let text = call("call", "echo").failure().await;
    assert!(text.ends_with("}kubewarden/oci/echo: this policy may not call the host"), "{text}");
}

#[tokio::test]
async fn unread_answers_of_the_host_are_bounded() {
    let body = "(loop (drop (call $call (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
                    (i32.const 1300) (i32.const 4) (i32.const 0) (i32.const 0))) (br 0))";
    let program = Command::with_body(body).data(1300, "long").program().with_host(Arc::new(TestHost::default()));
    let error = program.evaluate(&create_review(), long_deadline()).await.unwrap_err().to_string();
    assert!(error.contains("does not read the answers of its host"), "{error}");
}

#[tokio::test]
async fn an_endless_answer_ends_the_evaluation() {
    let body = "(i32.store (i32.const 4) (i32.const 131072))
                (loop (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br 0))";
    assert_eq!(Command::with_body(body).failure().await, "the policy's answer is too long");
    let body = "(i32.store (i32.const 4) (i32.const 131072))
                (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8))) unreachable";
    assert!(Command::with_body(body).failure().await.len() < 2000);
}

#[tokio::test]
async fn a_missing_answer_fails_the_evaluation() {
    assert_eq!(Command::with_body("").failure().await, "the policy gave no answer");
    let exited = Command::writing(1, ALLOW, "(call $exit (i32.const 2))").failure().await;
    assert_eq!(exited, "the policy exited with code 2", "an answer before a failure does not count");
    let invalid = Command::writing(1, "yes", "").evaluate().await;
    assert!(matches!(invalid, Err(EvaluationError::InvalidAnswer(_))), "{invalid:?}");
}
