//! The functions of WASI preview 1 that policies can use.

use std::time::{Duration, Instant};

use proviso_core::Verdict;
use proviso_engines::{Deadline, EvaluationError};

use super::guest::{Guest, create_review, escaped, long_deadline};
use crate::deadline::ended_at;

/// Returns a guest that imports one function of WASI. The guest accepts the request if the code leaves 1, and traps if the
/// code leaves 0.
fn expecting(import: &str, code: &str) -> Guest {
    let body = format!(
        "(if (i32.eqz {code}) (then unreachable))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)"
    );
    let (name, types) = import.split_once(' ').unwrap();
    Guest::with_body(&body)
        .data(1024, r#"{"accepted":true}"#)
        .import(&format!(r#"(import "wasi_snapshot_preview1" "{name}" (func ${name} {types}))"#))
}

const I32_2: &str = "(param i32 i32) (result i32)";
const I32_4: &str = "(param i32 i32 i32 i32) (result i32)";

#[tokio::test]
async fn policies_have_no_arguments_environment_or_files() {
    for (import, code) in [
        (format!("args_sizes_get {I32_2}"), "(i32.eqz (call $args_sizes_get (i32.const 0) (i32.const 4)))"),
        (format!("environ_sizes_get {I32_2}"), "(i32.eqz (call $environ_sizes_get (i32.const 0) (i32.const 4)))"),
        (
            format!("fd_prestat_get {I32_2}"),
            "(i32.eq (call $fd_prestat_get (i32.const 3) (i32.const 0)) (i32.const 8))",
        ),
        (format!("fd_fdstat_get {I32_2}"), "(i32.eqz (call $fd_fdstat_get (i32.const 1) (i32.const 0)))"),
        (
            format!("fd_read {I32_4}"),
            "(i32.eqz (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))",
        ),
        ("fd_close (param i32) (result i32)".into(), "(i32.eq (call $fd_close (i32.const 3)) (i32.const 8))"),
        ("sched_yield (result i32)".into(), "(i32.eqz (call $sched_yield))"),
    ] {
        assert_eq!(expecting(&import, code).evaluate().await, Ok(Verdict::allow()), "{import}");
    }
}

#[tokio::test]
async fn all_of_preview_1_can_be_imported() {
    let i = |count: usize| "i32 ".repeat(count);
    for (name, parameters) in [
        ("fd_pwrite", "i32 i32 i32 i64 i32".to_owned()),
        ("fd_filestat_set_times", "i32 i64 i64 i32".to_owned()),
        ("path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32".to_owned()),
        ("path_filestat_set_times", "i32 i32 i32 i32 i64 i64 i32".to_owned()),
        ("path_rename", i(6)),
        ("sock_accept", i(3)),
        ("sock_recv", i(6)),
        ("proc_raise", i(1)),
        ("poll_oneoff", i(4)),
    ] {
        let import = format!("{name} (param {parameters}) (result i32)");
        assert_eq!(expecting(&import, "(i32.const 1)").evaluate().await, Ok(Verdict::allow()), "{name}");
    }
}

#[tokio::test]
async fn clocks_and_random_numbers_work() {
    let clock = expecting(
        "clock_time_get (param i32 i64 i32) (result i32)",
        "(i32.and
            (i32.eqz (call $clock_time_get (i32.const 0) (i64.const 0) (i32.const 8)))
            (i64.gt_u (i64.load (i32.const 8)) (i64.const 1700000000000000000)))",
    );
    assert_eq!(clock.evaluate().await, Ok(Verdict::allow()));
    // The monotonic clock starts with the instance, at 1 s. The evaluation takes less than a minute.
    let monotonic = expecting(
        "clock_time_get (param i32 i64 i32) (result i32)",
        "(i32.and
            (i32.eqz (call $clock_time_get (i32.const 1) (i64.const 0) (i32.const 8)))
            (i64.lt_u (i64.sub (i64.load (i32.const 8)) (i64.const 1000000000)) (i64.const 60000000000)))",
    );
    assert_eq!(monotonic.evaluate().await, Ok(Verdict::allow()));
    let random = expecting(
        &format!("random_get {I32_2}"),
        "(i32.and
            (i32.eqz (call $random_get (i32.const 8) (i32.const 16)))
            (i64.ne (i64.load (i32.const 8)) (i64.load (i32.const 16))))",
    );
    assert_eq!(random.evaluate().await, Ok(Verdict::allow()));
    let too_many = "(i32.eq (call $random_get (i32.const 0) (i32.const 70000)) (i32.const 28))";
    assert_eq!(expecting(&format!("random_get {I32_2}"), too_many).evaluate().await, Ok(Verdict::allow()));
}

#[tokio::test]
async fn discarded_output_counts_as_written() {
    let guest = expecting(
        &format!("fd_write {I32_4}"),
        "(i32.and
            (i32.eqz (call $fd_write (i32.const 2) (i32.const 0) (i32.const 2) (i32.const 100)))
            (i32.eq (i32.load (i32.const 100)) (i32.const 70005)))",
    );
    // The data has two buffers: 5 bytes at 1024, and 70,000 bytes at 0.
    let guest = guest.field(r#"(data (i32.const 0) "\00\04\00\00\05\00\00\00\00\00\00\00\70\11\01\00")"#);
    assert_eq!(guest.evaluate().await, Ok(Verdict::allow()));
}

#[tokio::test]
async fn addresses_outside_the_guests_memory_end_the_evaluation() {
    for (import, code) in [
        (format!("args_sizes_get {I32_2}"), "(call $args_sizes_get (i32.const -1) (i32.const 0))"),
        (format!("random_get {I32_2}"), "(call $random_get (i32.const 131070) (i32.const 16))"),
        (format!("random_get {I32_2}"), "(call $random_get (i32.const 0) (i32.const -1))"),
        (format!("fd_write {I32_4}"), "(call $fd_write (i32.const 1) (i32.const -8) (i32.const 1) (i32.const 0))"),
        (format!("fd_write {I32_4}"), "(call $fd_write (i32.const 1) (i32.const 1024) (i32.const 1) (i32.const 0))"),
        (format!("fd_write {I32_4}"), "(call $fd_write (i32.const 1) (i32.const 0) (i32.const 0) (i32.const -1))"),
        (format!("fd_fdstat_get {I32_2}"), "(call $fd_fdstat_get (i32.const 1) (i32.const 131071))"),
        (
            format!("poll_oneoff {I32_4}"),
            "(call $poll_oneoff (i32.const -1) (i32.const 0) (i32.const 1) (i32.const 0))",
        ),
        (
            "clock_time_get (param i32 i64 i32) (result i32)".into(),
            "(call $clock_time_get (i32.const 0) (i64.const 0) (i32.const -1))",
        ),
    ] {
        let text = expecting(&import, code).failure().await;
        let name = import.split_once(' ').unwrap().0;
        assert!(text.contains(name) && text.contains("outside its memory"), "{code}: {text}");
    }
}

/// Returns a guest that sleeps. The timeout of its subscription, which is at 2000, has the offset 24.
fn sleeper(nanoseconds: u64) -> Guest {
    let import = format!("poll_oneoff {I32_4}");
    let code = "(i32.and
        (i32.eqz (call $poll_oneoff (i32.const 2000) (i32.const 3000) (i32.const 1) (i32.const 4000)))
        (i32.and (i32.eq (i32.load (i32.const 4000)) (i32.const 1)) (i32.eq (i32.load8_u (i32.const 3000)) (i32.const 7))))";
    let timeout = escaped(&nanoseconds.to_le_bytes());
    expecting(&import, code)
        .field(r#"(data (i32.const 2000) "\07") (data (i32.const 2016) "\01")"#)
        .field(&format!("(data (i32.const 2024) \"{timeout}\")"))
}

#[tokio::test]
async fn a_sleep_takes_the_requested_time() {
    let (program, review) = (sleeper(30_000_000).program(), create_review());
    let start = Instant::now();
    assert_eq!(program.evaluate(&review, long_deadline()).await, Ok(Verdict::allow()));
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn a_sleep_does_not_block_the_thread() {
    let (sleeper, other) = (sleeper(u64::MAX).program(), Guest::answering(r#"{"accepted":true}"#).program());
    let review = create_review();
    // Both evaluations run on one thread. A sleep that blocked it would end before the other evaluation starts.
    tokio::select! {
        biased;
        result = sleeper.evaluate(&review, long_deadline()) => panic!("the sleep ended: {result:?}"),
        verdict = other.evaluate(&review, long_deadline()) => assert_eq!(verdict, Ok(Verdict::allow())),
    }
}

#[tokio::test]
async fn a_long_sleep_ends_at_the_deadline() {
    let (program, review) = (sleeper(u64::MAX).program(), create_review());
    let deadline = Deadline::after(Duration::from_millis(200));
    let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
}

#[tokio::test]
async fn an_initialiser_may_exit_with_code_0() {
    let command = |code: i32| {
        Guest::answering(r#"{"accepted":true}"#)
            .import(r#"(import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))"#)
            .field(&format!(r#"(func (export "_start") (call $proc_exit (i32.const {code})))"#))
    };
    assert_eq!(command(0).evaluate().await, Ok(Verdict::allow()));
    assert_eq!(command(1).failure().await, "the policy exited with code 1");
    let late = Guest::with_body("(call $proc_exit (i32.const 0)) unreachable")
        .import(r#"(import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))"#);
    assert_eq!(late.failure().await, "the policy exited with code 0");
}
