//! What guests ask of their host, one fuzz target for each calling convention: they call every function of the host with
//! whatever addresses, lengths and bytes the fuzzer comes up with, in any order. An evaluation may fail, but it ends in time,
//! gives its place back, and the process goes on.

pub mod boundary;
pub mod hostile;
#[path = "../../tests/standalone/wasm/world.rs"]
#[allow(dead_code, reason = "the tests give it objects, too")]
mod world;
