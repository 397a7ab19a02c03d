//! waPC guests: see [`proviso_engines_fuzz`].

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use proviso_engines_fuzz::boundary::Boundary;
use proviso_engines_fuzz::hostile::Abi;

static BOUNDARY: LazyLock<Boundary> = LazyLock::new(|| Boundary::new(Abi::Wapc));

fuzz_target!(|input: &[u8]| BOUNDARY.cross(input));
