//! Fuzzes the functions that a host provides to its guests, with one fuzz target for each calling convention. The guests call
//! every host function with addresses, lengths and bytes from the fuzzer, in any order. An evaluation may fail, but must end in
//! time, release its evaluation slot, and leave the process running.

pub mod harness;
pub mod hostile;
#[path = "../../tests/standalone/wasm/test_host.rs"]
#[allow(dead_code, reason = "only the tests give the host objects")]
mod test_host;
