//! Fuzzes WASI commands: see [`proviso_engines_fuzz`].

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use proviso_engines_fuzz::harness::Harness;
use proviso_engines_fuzz::hostile::Abi;

static HARNESS: LazyLock<Harness> = LazyLock::new(|| Harness::new(Abi::Wasi));

fuzz_target!(|input: &[u8]| HARNESS.run(input));
