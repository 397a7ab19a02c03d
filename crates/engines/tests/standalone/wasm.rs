//! The wasm engine through its public face, with guests written in WebAssembly text.
mod answers;
mod boundary;
mod command;
mod commands;
mod compiled_rego;
mod examples;
mod faults;
mod guest;
mod host_calls;
mod isolation;
mod limits;
mod modules;
mod pointers;
mod rego;
mod snapshot;
mod wasi;
mod world;
