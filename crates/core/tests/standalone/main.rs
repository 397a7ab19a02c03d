//! Tests of the public API.

#![allow(clippy::panic, reason = "a test fails by panicking")]

mod fuzz;
