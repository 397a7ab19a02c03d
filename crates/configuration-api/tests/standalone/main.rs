//! Tests of the configuration API over a store in memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod authorization;
mod binding;
mod calls;
mod consul;
mod handlers;
mod memory_store;
mod subscriptions;
mod watches;
