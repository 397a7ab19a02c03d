//! What guests do wrong, in every mode alike (rows 1, 2, 5, 6, 7 and 8 of the faults that Proviso withstands).

use std::sync::Arc;
use std::time::Duration;

use proviso_core::Verdict;
use proviso_engines::wasm::ExecutionMode::{self, Gatekeeper, KubewardenWapc, Opa, Wasi};
use proviso_engines::wasm::Program;
use proviso_engines::{CompileError, Deadline, EvaluationError};

use super::command::Command;
use super::guest::{ENGINE, Guest, create, failure, load, soon};
use super::rego::Rego;
use super::world::World;
use crate::deadline::ended_at;

const MODES: [ExecutionMode; 4] = [KubewardenWapc, Opa, Gatekeeper, Wasi];

/// A module that runs this code when it is asked, with these fields.
fn module(mode: ExecutionMode, code: &str, fields: &str) -> Vec<u8> {
    match mode {
        KubewardenWapc => Guest::calling(&format!("{code} (i32.const 1)")).field(fields).wasm(),
        Opa | Gatekeeper => Rego::evaluating(&format!("{code} (i32.const 0)")).field(fields).wasm(),
        Wasi => Command::doing(code).field(fields).wasm(),
    }
}

fn program(mode: ExecutionMode, code: &str, fields: &str) -> Program {
    Program::new(load(&ENGINE, &module(mode, code, fields)).unwrap(), *b"{}").in_mode(mode)
}

/// A program that allows everything.
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
            // Whatever is left of it: the end of a section, or the middle of one.
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
fn a_module_that_starts_out_too_large_is_refused() {
    for mode in MODES {
        let error = ENGINE.precompile(&module(mode, "", "(table 200000 funcref)")).unwrap_err();
        assert!(matches!(&error, CompileError::Invalid(text) if text.contains("limit")), "{mode}: {error}");
    }
    let error = ENGINE.precompile(&Rego::answering("[]").memory("17").wasm()).unwrap_err();
    assert!(error.to_string().contains("exceeds the limit"), "{error}");
}

/// All of this runs on one thread: what the loop does not give away, nobody gets.
#[tokio::test]
async fn an_endless_loop_ends_in_time_while_others_are_answered() {
    for mode in MODES {
        let (endless, quick, review) = (program(mode, "(loop (br 0))", ""), allowing(mode), create());
        {
            // A loop that kept the thread until its end would have ended when the first of these is answered.
            let looping = endless.evaluate(&review, soon());
            tokio::pin!(looping);
            for _ in 0..5 {
                tokio::select! {
                    biased;
                    result = &mut looping => panic!("{mode}: the loop ended: {result:?}"),
                    verdict = quick.evaluate(&review, soon()) => assert_eq!(verdict, Ok(Verdict::allow()), "{mode}"),
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
        assert_eq!(allowing(mode).evaluate(&create(), soon()).await, Ok(Verdict::allow()), "{mode}");
    }
}

#[tokio::test]
async fn a_host_that_hangs_ends_with_the_policys_deadline() {
    let name = "(i32.const 2000) (i32.const 4)";
    let host = Arc::new(World { hides: true, ..World::default() });
    for mode in MODES {
        let function = if mode == KubewardenWapc { "$host_call" } else { "$call" };
        let code = match mode {
            // These are given what they may know before they are asked.
            Opa | Gatekeeper => String::new(),
            KubewardenWapc | Wasi => format!("(drop (call {function} {name} {name} {name} {name}))"),
        };
        let program = program(mode, &code, r#"(data (i32.const 2000) "hang")"#).with_host(host.clone());
        let (review, deadline) = (create(), Deadline::after(Duration::from_millis(100)));
        let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded), "{mode}");
    }
}

#[tokio::test]
async fn a_builtin_that_takes_long_ends_with_the_policys_deadline() {
    // A million addresses: more than the memory of the guest holds, so that who waits for them fails otherwise.
    let body = "(drop (call $builtin1 (i32.const 7) (i32.const 0) (i32.const 2048))) (i32.const 0)";
    let rego = Rego::evaluating(body).naming(r#"{"net.cidr_expand":7}"#).text(2048, r#""10.0.0.0/12""#);
    let (program, review, deadline) = (rego.program(Opa), create(), Deadline::after(Duration::from_millis(100)));
    let result = ended_at(deadline, program.evaluate(&review, deadline)).await;
    assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
}
