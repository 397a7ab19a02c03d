//! Tests of the wasm engine through its public API, with guests in the WebAssembly text format.
mod answers;
mod command;
mod commands;
mod compiled_rego;
mod examples;
mod faults;
mod go_guests;
mod guest;
mod host_calls;
mod hostile_guests;
mod isolation;
mod limits;
mod modules;
mod pointers;
mod rego;
mod snapshot;
mod test_host;
mod wasi;

pub(crate) use guest::Guest;
pub(crate) use rego::Rego;
