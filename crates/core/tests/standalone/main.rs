//! Reviews, read from outside the crate.

#![allow(clippy::panic, reason = "a test fails by panicking")]

mod fuzz;
