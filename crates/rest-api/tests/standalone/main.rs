//! Tests of the REST API without a cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod memory_store;
mod operations;
mod request_policies;
mod router;
mod store;
