//! Evaluations share no state and do not block each other.

use std::task::Poll;
use std::time::Duration;

use proviso_core::Verdict;
use proviso_engines::wasm::Program;
use proviso_engines::{Deadline, EvaluationError, Shortage};

use super::guest::{Guest, create_review, engine, load, long_deadline};
use crate::deadline::ended_at;

#[tokio::test]
async fn every_evaluation_starts_with_fresh_state() {
    // The guest traps if an earlier evaluation wrote to memory, a global or a table.
    let guest = Guest::with_body(
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
        assert_eq!(program.evaluate(&create_review(), long_deadline()).await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn initialisers_run_for_every_instance_in_order() {
    // Each initialiser appends its digit: the number is 123 if each of them ran once and in order.
    let step = |name, digit| {
        format!(
            r#"(func (export "{name}")
                (global.set $seen (i32.add (i32.mul (global.get $seen) (i32.const 10)) (i32.const {digit}))))"#
        )
    };
    let guest = Guest::with_body(
        "(if (i32.ne (global.get $seen) (i32.const 123)) (then unreachable))
         (call $respond (i32.const 1024) (i32.const 17)) (i32.const 1)",
    );
    let guest = guest.data(1024, r#"{"accepted":true}"#).field("(global $seen (mut i32) (i32.const 0))");
    let guest = guest.field(&step("wapc_init", 3)).field(&step("_start", 2)).field(&step("_initialize", 1));
    let program = guest.program();
    for _ in 0..3 {
        assert_eq!(program.evaluate(&create_review(), long_deadline()).await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn an_endless_initialiser_ends_in_time() {
    let guest = Guest::answering(r#"{"accepted":true}"#).field(r#"(func (export "_initialize") (loop (br 0)))"#);
    // The program is compiled before the deadline starts, because the attempt to record a snapshot takes longer.
    let (program, review) = (guest.program(), create_review());
    let deadline = Deadline::after(Duration::from_millis(200));
    let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
}

#[tokio::test]
async fn an_evaluation_does_not_start_after_its_deadline() {
    let result =
        Guest::with_body("unreachable").program().evaluate(&create_review(), Deadline::after(Duration::ZERO)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
}

#[tokio::test]
async fn evaluations_wait_for_a_slot_no_longer_than_their_deadline() {
    let engine = engine(1);
    let program = |guest: Guest| Program::new(load(&engine, &guest.wasm()).unwrap(), *b"{}");
    let endless = program(Guest::with_body("(loop (br 0)) (i32.const 1)"));
    let quick = program(Guest::answering(r#"{"accepted":true}"#));
    let review = create_review();
    {
        let looping = endless.evaluate(&review, long_deadline());
        tokio::pin!(looping);
        // The loop occupies the only slot before the deadline of the other evaluation starts.
        let first_poll = std::future::poll_fn(|context| Poll::Ready(looping.as_mut().poll(context))).await;
        assert!(first_poll.is_pending(), "the loop ended");
        // The other evaluation must have time to start waiting, even on a busy machine.
        let deadline = Deadline::after(Duration::from_millis(500));
        let result = tokio::select! {
            biased;
            result = ended_at(deadline, quick.evaluate(&review, deadline)) => result,
            _ = &mut looping => panic!("the loop ended"),
        };
        assert_eq!(result, Err(EvaluationError::Overloaded(Shortage::Cpu)));
    }
    // The dropped evaluation has released its slot.
    assert_eq!(quick.evaluate(&review, long_deadline()).await, Ok(Verdict::allow()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_evaluations_than_slots_are_all_answered() {
    let module = load(&engine(8), &Guest::answering(r#"{"accepted":true}"#).wasm()).unwrap();
    let program = Program::new(module, *b"{}");
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let program = program.clone();
            tokio::spawn(async move { program.evaluate(&create_review(), long_deadline()).await })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Ok(Verdict::allow()));
    }
}
