//! The wasm engine through its public face, with guests written in WebAssembly text.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod guest;
mod host_calls;
mod isolation;
mod limits;
mod modules;
mod pointers;
mod snapshot;
mod wasi;
