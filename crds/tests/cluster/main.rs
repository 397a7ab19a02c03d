//! Tests of the kinds with a real API server.

#![allow(clippy::unwrap_used, reason = "clippy knows only #[test] functions as tests")]

mod api_server;
