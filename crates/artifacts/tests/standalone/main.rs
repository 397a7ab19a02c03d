//! Modules and images from servers that each test starts itself.

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
