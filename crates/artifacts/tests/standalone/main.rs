//! Tests of modules and images from servers in the test process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod images;
mod servers;
#[path = "../support/mod.rs"]
mod support;
