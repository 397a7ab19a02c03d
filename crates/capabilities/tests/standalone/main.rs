//! Host capabilities with a folder of objects, and with stub API servers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod coalescing;
mod grants;
mod informers;
#[path = "../support/mod.rs"]
mod support;
