//! Programs of the examples.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that fails says so")]

mod cel_example;
