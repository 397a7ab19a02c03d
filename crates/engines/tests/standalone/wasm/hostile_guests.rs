//! Guests that call their host with arbitrary addresses, lengths and bytes. An evaluation may fail, but must end, and the
//! process must keep running. `make fuzz` runs the same guests and the same code for longer.

use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proviso_engines::Deadline;

use self::harness::{Harness, Operation};
use self::hostile::builtins::BUILTINS;
use self::hostile::script::{MAX_ARGUMENTS, Record, write};
use self::hostile::{Abi, guest};
use super::test_host;

#[path = "../../../fuzz/src/harness.rs"]
mod harness;
#[path = "../../../fuzz/src/hostile.rs"]
mod hostile;

static HARNESSES: LazyLock<[Harness; 3]> = LazyLock::new(|| Abi::ALL.map(Harness::new));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_call_of_a_host_function_ends(input in prop::collection::vec(any::<u8>(), 1..400)) {
        for harness in HARNESSES.iter() {
            harness.run(&input);
        }
    }
}

/// Runs a script. Returns the text of the error, or "a verdict".
fn outcome(harness: &Harness, records: &[Record]) -> String {
    let (script, deadline) = (write(records, b"contents"), Deadline::after(Duration::from_secs(10)));
    let result = harness.run_script(Operation::Evaluate, &script, deadline);
    result.map_or_else(|error| error.to_string(), |()| "a verdict".to_owned())
}

fn record(function: usize, arguments: &[u32]) -> Record {
    let mut all = [0; MAX_ARGUMENTS];
    all[..arguments.len()].copy_from_slice(arguments);
    Record { function, arguments: all }
}

/// Each script calls a function with addresses outside the memory, and then a function that fails. The error then names either
/// the first function, which failed, or the last function, which proves that the first function returned.
#[test]
fn the_hostile_guests_call_every_host_function() {
    for (abi, harness) in Abi::ALL.into_iter().zip(HARNESSES.iter()) {
        let guest = harness.guest();
        let (module, last) = match abi {
            Abi::Wapc => ("wapc", "__guest_request"),
            Abi::Opa => ("env", "opa_println"),
            Abi::Wasi => ("wasi_snapshot_preview1", "args_get"),
        };
        let failing_call = record(guest.function_index(module, last), &[guest::MEMORY + 1; MAX_ARGUMENTS]);
        for (index, import) in guest.imports.iter().enumerate() {
            // The first argument may be a file descriptor or a clock, which are small numbers.
            for first in [0, 1, guest::MEMORY] {
                let mut arguments = [guest::MEMORY; MAX_ARGUMENTS];
                arguments[0] = first;
                let text = outcome(harness, &[record(index, &arguments), failing_call]);
                let expected = match import.name {
                    // A command that exits with code 0 does not fail, but has no answer.
                    "proc_exit" if abi == Abi::Wasi && first == 0 => "gave no answer",
                    "proc_exit" => "exited with code",
                    "call" => "host.call with",
                    "opa_abort" if first < guest::MEMORY => "aborted",
                    name if name.starts_with("opa_builtin") => "the policy called",
                    name => name,
                };
                assert!(text.contains(expected) || text.contains(last), "{abi:?} {}: {text}", import.name);
            }
        }
        // The guest's own functions must return.
        for index in guest.imports.len()..guest.function_count() {
            let text = outcome(harness, &[record(index, &[0]), failing_call]);
            assert!(text.contains(last), "{abi:?} {index}: {text}");
        }
    }
}

#[test]
fn compiled_rego_calls_every_builtin_with_its_number_of_arguments() {
    let [_, harness, _] = &*HARNESSES;
    for (id, ((name, _), template)) in (0..).zip(BUILTINS.iter().zip(&harness.guest().templates)) {
        let mut arguments = vec![guest::text_address(0); template.arguments.len()];
        arguments[0] = id;
        let text = outcome(harness, &[record(template.function, &arguments)]);
        assert!(!text.contains("the policy called") && !text.contains("panicked"), "{name}: {text}");
    }
}

/// The host finds the bytes that a script writes to the memory of its guest.
#[test]
fn the_hostile_guests_run_their_scripts() {
    let [wapc, opa, wasi] = &*HARNESSES;
    // This record overwrites the beginning of the first text.
    let write = |harness: &Harness, bytes: [u8; 4]| {
        let store = harness.guest().function_count() - 3;
        record(store, &[guest::text_address(0), u32::from_le_bytes(bytes)])
    };
    let call = |harness: &Harness, module: &str, name: &str, arguments: &[u32]| {
        record(harness.guest().function_index(module, name), arguments)
    };
    let fail = call(wapc, "wapc", "__guest_error", &[guest::text_address(0), 4]);
    assert!(outcome(wapc, &[write(wapc, *b"well"), fail]).ends_with("error: well"));
    let abort = call(opa, "env", "opa_abort", &[guest::text_address(0)]);
    assert!(outcome(opa, &[write(opa, *b"no\0\0"), abort]).contains("aborted: no"));
    let exit = call(wasi, "wasi_snapshot_preview1", "proc_exit", &[7]);
    assert!(outcome(wasi, &[exit]).contains("exited with code 7"));
    let contents = |harness: &Harness, module: &str, name: &str| {
        outcome(harness, &[call(harness, module, name, &[guest::CONTENTS])])
    };
    assert!(contents(opa, "env", "opa_abort").contains("aborted: contents"));
}
