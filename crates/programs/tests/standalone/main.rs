//! Tests of the programs in `examples/`.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod cel_example;
