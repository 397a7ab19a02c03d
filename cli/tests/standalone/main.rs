//! Tests of the program without a cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod policies;
mod server;
mod subscriptions;
#[path = "../support/mod.rs"]
mod support;
