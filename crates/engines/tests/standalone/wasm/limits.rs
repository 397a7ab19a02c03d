//! Guests that exceed a limit. Only the evaluation of the guest fails.

use proviso_core::Verdict;
use proviso_engines::CompileError;
use proviso_engines::wasm::{Config, Engine, EngineError};

use super::guest::Guest;

#[tokio::test]
async fn memory_does_not_grow_beyond_the_limit() {
    let guest = Guest::with_body("(loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable");
    let text = guest.failure().await;
    assert!(text.contains("more memory than its limit of 1024 KiB"), "{text}");
}

#[tokio::test]
async fn growing_the_memory_to_4_gibibytes_is_refused() {
    let guest = Guest::with_body("(drop (memory.grow (i32.const 65535))) (memory.size)").failure().await;
    assert_eq!(guest, "the policy gave no answer");
}

#[tokio::test]
async fn a_table_does_not_grow_beyond_the_limit() {
    let guest = Guest::with_body(
        "(if (i32.ne (table.grow $table (ref.null func) (i32.const 100000000)) (i32.const -1)) (then unreachable))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)",
    );
    let guest = guest.field("(table $table 1 funcref)").data(1024, r#"{"accepted":true}"#);
    assert_eq!(guest.evaluate().await, Ok(Verdict::allow()));
}

#[tokio::test]
async fn endless_recursion_traps() {
    let text = Guest::with_body("(call $guest_call (i32.const 0) (i32.const 0))").failure().await;
    assert_eq!(text, "the policy trapped: wasm trap: call stack exhausted in function guest_call");
}

#[tokio::test]
async fn a_copy_of_two_gibibytes_traps() {
    let guest = Guest::with_body("(memory.copy (i32.const 0) (i32.const 1) (i32.const 0x7fffffff)) (i32.const 1)");
    assert!(guest.failure().await.contains("out of bounds memory access"));
}

#[tokio::test]
async fn the_message_of_a_trap_has_one_line() {
    let text = Guest::with_body("unreachable").failure().await;
    assert_eq!(text, "the policy trapped: wasm trap: wasm `unreachable` instruction executed in function guest_call");
}

#[test]
fn a_module_with_too_large_initial_tables_or_memory_is_refused() {
    for field in ["(table 200000 funcref)", "(memory 1)"] {
        let error = Guest::with_body("(i32.const 1)").field(field).load().unwrap_err();
        assert!(matches!(&error, CompileError::Invalid(text) if text.contains("limit")), "{field}: {error}");
    }
    let large = r#"(module (memory (export "memory") 17)
        (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 1)))"#;
    let error = super::guest::ENGINE.precompile(&wat::parse_str(large).unwrap()).unwrap_err();
    assert!(error.to_string().contains("exceeds the limit"), "{error}");
}

#[test]
fn limits_outside_their_range_are_refused() {
    for config in [
        Config { concurrency: 0, ..Config::default() },
        Config { memory_limit: 1000, ..Config::default() },
        Config { memory_limit: 5 << 30, ..Config::default() },
    ] {
        let error = Engine::new(config).unwrap_err();
        assert!(matches!(error, EngineError::Configuration(_)), "{error}");
    }
    let error = Engine::new(Config { concurrency: 1 << 20, ..Config::default() }).unwrap_err();
    assert!(matches!(error, EngineError::Pool { .. }), "{error}");
}
