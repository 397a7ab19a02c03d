//! Host capabilities over a folder of objects, and over API servers that each test starts itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod gates;
mod once;
#[path = "../support/mod.rs"]
mod support;
mod watching;
