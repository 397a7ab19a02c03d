//! Guests that call their host with whatever there is: addresses, lengths and bytes. An evaluation may fail, but it ends,
//! and nothing else does. `make fuzz` goes further with the same guests and the same code.

use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proviso_engines::Deadline;

use self::boundary::{Boundary, Question};
use self::hostile::builtins::BUILTINS;
use self::hostile::script::{ARGUMENTS, Record, write};
use self::hostile::{Abi, guest};
use super::world;

#[path = "../../../fuzz/src/boundary.rs"]
#[allow(clippy::module_inception, reason = "its name in the fuzz crate")]
mod boundary;
#[path = "../../../fuzz/src/hostile.rs"]
mod hostile;

static BOUNDARIES: LazyLock<[Boundary; 3]> = LazyLock::new(|| Abi::ALL.map(Boundary::new));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_call_of_a_host_function_ends(input in prop::collection::vec(any::<u8>(), 1..400)) {
        for boundary in BOUNDARIES.iter() {
            boundary.cross(&input);
        }
    }
}

/// What comes of a script.
fn told(boundary: &Boundary, records: &[Record]) -> String {
    let result =
        boundary.ask(Question::Verdict, &write(records, b"contents"), Deadline::after(Duration::from_secs(10)));
    result.map_or_else(|error| error.to_string(), |()| "a verdict".to_owned())
}

fn record(function: usize, arguments: &[u32]) -> Record {
    let mut all = [0; ARGUMENTS];
    all[..arguments.len()].copy_from_slice(arguments);
    Record { function, arguments: all }
}

/// Each function is called outside of the memory, and after it one that fails: the first did too, or came back.
#[test]
fn the_guests_call_every_function_of_their_host() {
    for (abi, boundary) in Abi::ALL.into_iter().zip(BOUNDARIES.iter()) {
        let guest = boundary.guest();
        let (module, last) = match abi {
            Abi::Wapc => ("wapc", "__guest_request"),
            Abi::Opa => ("env", "opa_println"),
            Abi::Wasi => ("wasi_snapshot_preview1", "args_get"),
        };
        let witness = record(guest.function(module, last), &[guest::MEMORY + 1; ARGUMENTS]);
        for (index, import) in guest.imports.iter().enumerate() {
            // File descriptors and clocks are small numbers.
            for first in [0, 1, guest::MEMORY] {
                let mut arguments = [guest::MEMORY; ARGUMENTS];
                arguments[0] = first;
                let text = told(boundary, &[record(index, &arguments), witness]);
                let own = match import.name {
                    // A command may end without a word.
                    "proc_exit" if abi == Abi::Wasi && first == 0 => "gave no answer",
                    "proc_exit" => "exited with code",
                    "call" => "host.call with",
                    "opa_abort" if first < guest::MEMORY => "gave up",
                    name if name.starts_with("opa_builtin") => "the policy called",
                    name => name,
                };
                assert!(text.contains(own) || text.contains(last), "{abi:?} {}: {text}", import.name);
            }
        }
        // And all that they do besides.
        for index in guest.imports.len()..guest.functions() {
            let text = told(boundary, &[record(index, &[0]), witness]);
            assert!(text.contains(last), "{abi:?} {index}: {text}");
        }
    }
}

/// As it is named, and with as many arguments as it takes.
#[test]
fn compiled_rego_calls_every_builtin_that_it_names() {
    let [_, boundary, _] = &*BOUNDARIES;
    for (id, ((name, _), phrase)) in (0..).zip(BUILTINS.iter().zip(&boundary.guest().phrases)) {
        let mut arguments = vec![guest::place_of(0); phrase.parts.len()];
        arguments[0] = id;
        let text = told(boundary, &[record(phrase.function, &arguments)]);
        assert!(!text.contains("the policy called") && !text.contains("panicked"), "{name}: {text}");
    }
}

/// That scripts do what they say: what a guest wrote to its own memory is what its host finds there.
#[test]
fn the_guests_obey() {
    let [wapc, opa, wasi] = &*BOUNDARIES;
    // Over the beginning of a word.
    let write = |boundary: &Boundary, bytes: [u8; 4]| {
        let store = boundary.guest().functions() - 3;
        record(store, &[guest::place_of(0), u32::from_le_bytes(bytes)])
    };
    let call = |boundary: &Boundary, module: &str, name: &str, arguments: &[u32]| {
        record(boundary.guest().function(module, name), arguments)
    };
    let fail = call(wapc, "wapc", "__guest_error", &[guest::place_of(0), 4]);
    assert!(told(wapc, &[write(wapc, *b"well"), fail]).ends_with("error: well"));
    let give_up = call(opa, "env", "opa_abort", &[guest::place_of(0)]);
    assert!(told(opa, &[write(opa, *b"no\0\0"), give_up]).contains("gave up: no"));
    let exit = call(wasi, "wasi_snapshot_preview1", "proc_exit", &[7]);
    assert!(told(wasi, &[exit]).contains("exited with code 7"));
    let contents = |boundary: &Boundary, module: &str, name: &str| {
        told(boundary, &[call(boundary, module, name, &[guest::CONTENTS])])
    };
    assert!(contents(opa, "env", "opa_abort").contains("gave up: contents"));
}
