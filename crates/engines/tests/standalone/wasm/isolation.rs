//! Evaluations know nothing of each other, and hold up nobody.

use std::task::Poll;
use std::time::Duration;

use proviso_core::Verdict;
use proviso_engines::wasm::Program;
use proviso_engines::{Deadline, EvaluationError};

use super::guest::{Guest, create, engine, load, soon};
use crate::deadline::ended_at;

#[tokio::test]
async fn every_evaluation_starts_afresh() {
    // Traps where memory, a global or a table was written before.
    let guest = Guest::calling(
        "(if (i32.load (i32.const 0)) (then unreachable))
         (if (i32.load (i32.const 100000)) (then unreachable))
         (if (global.get $count) (then unreachable))
         (if (i32.eqz (ref.is_null (table.get $table (i32.const 0)))) (then unreachable))
         (i32.store (i32.const 0) (i32.const 1))
         (i32.store (i32.const 100000) (i32.const 1))
         (global.set $count (i32.const 1))
         (table.set $table (i32.const 0) (ref.func $guest_call))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)",
    );
    let guest =
        guest.field("(global $count (mut i32) (i32.const 0)) (table $table 1 funcref) (elem declare func $guest_call)");
    let program = guest.data(1024, r#"{"accepted":true}"#).program();
    for _ in 0..20 {
        assert_eq!(program.evaluate(&create(), soon()).await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn initialisers_run_for_every_instance_in_order() {
    // Each one adds its digit: 123 where they ran in order, once.
    let step = |name, digit| {
        format!(
            r#"(func (export "{name}")
                (global.set $seen (i32.add (i32.mul (global.get $seen) (i32.const 10)) (i32.const {digit}))))"#
        )
    };
    let guest = Guest::calling(
        "(if (i32.ne (global.get $seen) (i32.const 123)) (then unreachable))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)",
    );
    let guest = guest.data(1024, r#"{"accepted":true}"#).field("(global $seen (mut i32) (i32.const 0))");
    let guest = guest.field(&step("wapc_init", 3)).field(&step("_start", 2)).field(&step("_initialize", 1));
    let program = guest.program();
    for _ in 0..3 {
        assert_eq!(program.evaluate(&create(), soon()).await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn an_endless_initialiser_ends_in_time() {
    let guest = Guest::answering(r#"{"accepted":true}"#).field(r#"(func (export "_initialize") (loop (br 0)))"#);
    // Made first: recording its initialisation takes longer than the deadline.
    let (program, review) = (guest.program(), create());
    let deadline = Deadline::after(Duration::from_millis(200));
    let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
}

#[tokio::test]
async fn a_deadline_that_passed_before_starts_nothing() {
    let result = Guest::calling("unreachable").program().evaluate(&create(), Deadline::after(Duration::ZERO)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
}

#[tokio::test]
async fn evaluations_wait_for_a_place_no_longer_than_their_deadline() {
    let engine = engine(1);
    let program = |guest: Guest| Program::new(load(&engine, &guest.wasm()).unwrap(), *b"{}");
    let endless = program(Guest::calling("(loop (br 0)) (i32.const 1)"));
    let quick = program(Guest::answering(r#"{"accepted":true}"#));
    let review = create();
    {
        let looping = endless.evaluate(&review, soon());
        tokio::pin!(looping);
        // The loop takes the place, for as long as that takes; the clock of the other starts after that.
        let begun = std::future::poll_fn(|context| Poll::Ready(looping.as_mut().poll(context))).await;
        assert!(begun.is_pending(), "the loop ended");
        // Long enough to begin to wait, also on a busy machine.
        let deadline = Deadline::after(Duration::from_millis(500));
        let result = tokio::select! {
            biased;
            result = ended_at(deadline, quick.evaluate(&review, deadline)) => result,
            _ = &mut looping => panic!("the loop ended"),
        };
        assert_eq!(result, Err(EvaluationError::Overloaded));
    }
    // The abandoned evaluation gave its place back.
    assert_eq!(quick.evaluate(&review, soon()).await, Ok(Verdict::allow()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_evaluations_than_places_are_all_answered() {
    let module = load(&engine(8), &Guest::answering(r#"{"accepted":true}"#).wasm()).unwrap();
    let program = Program::new(module, *b"{}");
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let program = program.clone();
            tokio::spawn(async move { program.evaluate(&create(), soon()).await })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Ok(Verdict::allow()));
    }
}
