//! Fuzzes the parser of review envelopes: see [`proviso_core_fuzz::envelope`].

#![no_main]

use libfuzzer_sys::fuzz_target;
use proviso_core_fuzz::envelope;

fuzz_target!(|body: &[u8]| envelope::read(body));
