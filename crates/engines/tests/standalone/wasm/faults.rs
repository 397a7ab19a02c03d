//! Faulty guests in every execution mode: damaged and oversized modules, endless loops, excessive memory, hanging host calls
//! and slow builtins.

use std::sync::Arc;
use std::time::Duration;

use proviso_core::Verdict;
use proviso_engines::wasm::ExecutionMode::{self, Gatekeeper, KubewardenWapc, Opa, Wasi};
use proviso_engines::wasm::Program;
use proviso_engines::{CompileError, Deadline, EvaluationError};

use super::command::Command;
use super::guest::{ENGINE, Guest, create_review, failure, load, long_deadline};
use super::rego::Rego;
use super::test_host::TestHost;
use crate::deadline::ended_at;

const MODES: [ExecutionMode; 4] = [KubewardenWapc, Opa, Gatekeeper, Wasi];

/// Returns a module with these fields that runs the code at each evaluation.
fn module(mode: ExecutionMode, code: &str, fields: &str) -> Vec<u8> {
    match mode {
        KubewardenWapc => Guest::with_body(&format!("{code} (i32.const 1)")).field(fields).wasm(),
        Opa | Gatekeeper => Rego::with_body(&format!("{code} (i32.const 0)")).field(fields).wasm(),
        Wasi => Command::with_body(code).field(fields).wasm(),
    }
}

fn program(mode: ExecutionMode, code: &str, fields: &str) -> Program {
    Program::new(load(&ENGINE, &module(mode, code, fields)).unwrap(), *b"{}").in_mode(mode)
}

/// Returns a program that allows every request.
fn allowing(mode: ExecutionMode) -> Program {
    const ALLOW: &str = r#"{"accepted":true}"#;
    match mode {
        KubewardenWapc => Guest::answering(ALLOW).program(),
        Opa => Rego::answering(r#"[{"result":{"response":{"uid":"u","allowed":true}}}]"#).program(mode),
        Gatekeeper => Rego::answering(r#"[{"result":[]}]"#).program(mode),
        Wasi => Command::writing(1, ALLOW, "").program(),
    }
}

#[test]
fn a_module_that_does_not_compile_is_refused() {
    for mode in MODES {
        let wasm = module(mode, "", "");
        for length in 8..wasm.len() {
            // A truncated module may still be valid if it ends at the end of a section.
            if let Err(error) = ENGINE.precompile(&wasm[..length]) {
                assert!(!error.to_string().is_empty());
            }
        }
        let mut wrong = wasm.clone();
        let at = wrong.len() - 3;
        wrong[at] = 0xff;
        wrong.truncate(at + 1);
        assert!(ENGINE.precompile(&wrong).is_err(), "{mode}");
    }
}

#[test]
fn a_module_with_too_large_initial_tables_or_memory_is_refused() {
    for mode in MODES {
        let error = ENGINE.precompile(&module(mode, "", "(table 200000 funcref)")).unwrap_err();
        assert!(matches!(&error, CompileError::Invalid(text) if text.contains("limit")), "{mode}: {error}");
    }
    let error = ENGINE.precompile(&Rego::answering("[]").memory("17").wasm()).unwrap_err();
    assert!(error.to_string().contains("exceeds the limit"), "{error}");
}

/// All evaluations run on one thread, so other evaluations proceed only when the endless loop yields.
#[tokio::test]
async fn an_endless_loop_ends_in_time_while_other_evaluations_proceed() {
    for mode in MODES {
        let (endless, quick, review) = (program(mode, "(loop (br 0))", ""), allowing(mode), create_review());
        {
            // A loop that never yields would end at its deadline before the first of these evaluations starts.
            let looping = endless.evaluate(&review, long_deadline());
            tokio::pin!(looping);
            for _ in 0..5 {
                tokio::select! {
                    biased;
                    result = &mut looping => panic!("{mode}: the loop ended: {result:?}"),
                    verdict = quick.evaluate(&review, long_deadline()) => assert_eq!(verdict, Ok(Verdict::allow()), "{mode}"),
                }
            }
        }
        let deadline = Deadline::after(Duration::from_millis(300));
        let result = ended_at(deadline, endless.evaluate(&review, deadline)).await;
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded), "{mode}");
    }
}

#[tokio::test]
async fn memory_tables_stack_and_copies_are_bounded() {
    let table = "(table $table 1 funcref)";
    let grow_table =
        "(if (i32.ne (table.grow $table (ref.null func) (i32.const 100000000)) (i32.const -1)) (then unreachable))
         (drop (memory.grow (i32.const 65535))) unreachable";
    for mode in MODES {
        for (code, fields, words) in [
            (
                "(loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable",
                "",
                "its limit of 1024 KiB",
            ),
            (grow_table, table, "`unreachable`"),
            ("(call $again)", "(func $again (call $again) (call $again))", "call stack exhausted"),
            ("(memory.copy (i32.const 0) (i32.const 1) (i32.const 0x7fffffff))", "", "out of bounds memory access"),
            ("(memory.fill (i32.const 0) (i32.const 1) (i32.const -1))", "", "out of bounds memory access"),
            ("unreachable", "", "the policy trapped"),
            ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", "", "divide by zero"),
        ] {
            let text = failure(&program(mode, code, fields)).await;
            assert!(text.contains(words), "{mode} {code}: {text}");
        }
        assert_eq!(allowing(mode).evaluate(&create_review(), long_deadline()).await, Ok(Verdict::allow()), "{mode}");
    }
}

#[tokio::test]
async fn an_evaluation_with_a_hanging_host_ends_at_its_deadline() {
    let name = "(i32.const 2000) (i32.const 4)";
    let host = Arc::new(TestHost { hangs_on_objects: true, ..TestHost::default() });
    for mode in MODES {
        let function = if mode == KubewardenWapc { "$host_call" } else { "$call" };
        let code = match mode {
            // Compiled Rego gets its objects before the evaluation starts, so here the request for the objects hangs.
            Opa | Gatekeeper => String::new(),
            KubewardenWapc | Wasi => format!("(drop (call {function} {name} {name} {name} {name}))"),
        };
        let program = program(mode, &code, r#"(data (i32.const 2000) "hang")"#).with_host(host.clone());
        let (review, deadline) = (create_review(), Deadline::after(Duration::from_millis(100)));
        let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded), "{mode}");
    }
}

#[tokio::test]
async fn an_evaluation_with_a_slow_builtin_ends_at_its_deadline() {
    // The result has a million addresses. The guest's memory cannot hold them, so waiting for the result gives another error.
    let body = "(drop (call $builtin1 (i32.const 7) (i32.const 0) (i32.const 2048))) (i32.const 0)";
    let rego = Rego::with_body(body).with_builtins(r#"{"net.cidr_expand":7}"#).text(2048, r#""10.0.0.0/12""#);
    let (program, review, deadline) = (rego.program(Opa), create_review(), Deadline::after(Duration::from_millis(100)));
    let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
}
