//! Snapshots: the initialisation of a module that runs once, when the module is compiled. The tests detect a snapshot by the
//! time that the initialiser recorded.

use super::guest::Guest;

const LOG: &str = "(drop (call $host_call (i32.const 2000) (i32.const 10) (i32.const 2010) (i32.const 7)
                          (i32.const 2017) (i32.const 3) (i32.const 0) (i32.const 0)))";

/// Returns a guest that records the time during its initialisation. Each call fails. The error text is the recorded time if the
/// code `reveals_time` leaves 1, and empty if it leaves 0.
fn clock(reveals_time: &str, initialiser: &str) -> Guest {
    Guest::with_body(&format!("(call $fail (i32.const 8) (i32.mul (i32.const 8) {reveals_time})) (i32.const 0)"))
        .import(
            r#"(import "wasi_snapshot_preview1" "clock_time_get"
                (func $clock_time_get (param i32 i64 i32) (result i32)))"#,
        )
        .field(&format!(
            r#"(func (export "_initialize")
                (drop (call $clock_time_get (i32.const 0) (i64.const 0) (i32.const 8)))
                ;; Every byte below 128 is valid UTF-8.
                (i64.store (i32.const 8) (i64.and (i64.load (i32.const 8)) (i64.const 0x7f7f7f7f7f7f7f7f)))
                {initialiser})"#
        ))
        .data(2000, "kubewardentracinglog")
}

/// Returns true if two evaluations have the same recorded time.
async fn is_recorded(guest: Guest) -> bool {
    let program = guest.program();
    let (review, deadline) = (super::guest::create_review(), super::guest::long_deadline());
    let first = program.evaluate(&review, deadline).await.unwrap_err();
    let second = program.evaluate(&review, deadline).await.unwrap_err();
    assert!(first.to_string().len() > 8, "{first}");
    first == second
}

/// Code that leaves 1 only for the operation `validate`, whose name has 8 letters. The trial calls have other operations.
const IN_VALIDATE: &str = "(i32.eq (local.get $operation_len) (i32.const 8))";

#[tokio::test]
async fn initialisation_is_recorded() {
    assert!(is_recorded(clock(IN_VALIDATE, "")).await);
}

#[tokio::test]
async fn initialisation_that_grows_the_memory_is_recorded() {
    let grow = "(drop (memory.grow (i32.const 1))) (i32.store (i32.const 140000) (i32.const 7))";
    let guest = clock("(i32.eq (i32.load (i32.const 140000)) (i32.const 7))", grow);
    assert_eq!(guest.failure().await.len(), 8);
    let guest = clock(&format!("(i32.and {IN_VALIDATE} (i32.eq (memory.size) (i32.const 3)))"), grow);
    assert!(is_recorded(guest).await);
}

#[tokio::test]
async fn a_module_that_calls_its_host_while_it_initialises_is_not_recorded() {
    assert!(!is_recorded(clock(IN_VALIDATE, LOG)).await);
}

#[tokio::test]
async fn a_module_that_answers_differently_with_a_snapshot_is_not_recorded() {
    assert!(!is_recorded(clock("(i32.const 1)", "")).await);
}

#[tokio::test]
async fn a_module_that_writes_to_tables_is_not_recorded() {
    let write = "(table.set $table (i32.const 0) (ref.func $guest_call))";
    let table = "(table $table 1 funcref) (elem declare func $guest_call)";
    assert!(!is_recorded(clock(IN_VALIDATE, write).field(table)).await);
}

#[tokio::test]
async fn scattered_data_survives_the_recording() {
    // The segments are near to and far from each other. The last segment lies in a gap, and the initialiser overwrites it.
    let guest = clock(
        "(i32.and (i32.eq (i32.load8_u (i32.const 3000)) (i32.const 97))
            (i32.and (i32.eq (i32.load8_u (i32.const 3010)) (i32.const 98))
                (i32.and (i32.eq (i32.load8_u (i32.const 90000)) (i32.const 99))
                    (i32.eqz (i32.load8_u (i32.const 3005))))))",
        "(i32.store8 (i32.const 3005) (i32.const 0))",
    );
    let guest = guest.data(3000, "a").data(90_000, "c").data(3010, "b").data(3005, "x");
    assert_eq!(guest.failure().await.len(), 8);
}

#[tokio::test]
async fn data_that_instructions_refer_to_survives_the_recording() {
    let copy = r#"(func (export "_start") (memory.init $name (i32.const 3000) (i32.const 0) (i32.const 3)))"#;
    let guest = clock("(i32.eq (i32.load8_u (i32.const 3002)) (i32.const 99))", "").field(copy);
    assert_eq!(guest.field(r#"(data $name "abc")"#).failure().await.len(), 8);
}
