//! Guests that want too much. Each ends in an error of that evaluation; the process goes on.

use proviso_core::Verdict;
use proviso_engines::CompileError;
use proviso_engines::wasm::{Config, Engine, EngineError};

use super::guest::Guest;

#[tokio::test]
async fn memory_does_not_grow_beyond_the_limit() {
    let guest = Guest::calling("(loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable");
    let text = guest.failure().await;
    assert!(text.contains("more memory than its limit of 1024 KiB"), "{text}");
}

#[tokio::test]
async fn growth_by_everything_is_refused() {
    let guest = Guest::calling("(drop (memory.grow (i32.const 65535))) (memory.size)").failure().await;
    assert_eq!(guest, "the policy gave no answer");
}

#[tokio::test]
async fn a_table_does_not_grow_beyond_the_limit() {
    let guest = Guest::calling(
        "(if (i32.ne (table.grow $table (ref.null func) (i32.const 100000000)) (i32.const -1)) (then unreachable))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)",
    );
    let guest = guest.field("(table $table 1 funcref)").data(1024, r#"{"accepted":true}"#);
    assert_eq!(guest.evaluate().await, Ok(Verdict::allow()));
}

#[tokio::test]
async fn recursion_without_end_traps() {
    let text = Guest::calling("(call $guest_call (i32.const 0) (i32.const 0))").failure().await;
    assert_eq!(text, "the policy trapped: wasm trap: call stack exhausted in function guest_call");
}

#[tokio::test]
async fn a_copy_of_two_gibibytes_traps() {
    let guest = Guest::calling("(memory.copy (i32.const 0) (i32.const 1) (i32.const 0x7fffffff)) (i32.const 1)");
    assert!(guest.failure().await.contains("out of bounds memory access"));
}

#[tokio::test]
async fn a_trap_is_told_in_one_line() {
    let text = Guest::calling("unreachable").failure().await;
    assert_eq!(text, "the policy trapped: wasm trap: wasm `unreachable` instruction executed in function guest_call");
}

#[test]
fn a_module_that_starts_out_too_large_is_refused() {
    for field in ["(table 200000 funcref)", "(memory 1)"] {
        let error = Guest::calling("(i32.const 1)").field(field).load().unwrap_err();
        assert!(matches!(&error, CompileError::Invalid(text) if text.contains("limit")), "{field}: {error}");
    }
    let large = r#"(module (memory (export "memory") 17)
        (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 1)))"#;
    let error = super::guest::ENGINE.precompile(&wat::parse_str(large).unwrap()).unwrap_err();
    assert!(error.to_string().contains("exceeds the limit"), "{error}");
}

#[test]
fn an_engine_has_sensible_limits() {
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
