//! Tests of the REST API over a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod attribution;
mod commits;
mod objects;
mod operations;
mod request_policies;
mod test_api;
