//! Host capabilities with a real API server and a real OCI registry.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod images;
mod objects;
#[path = "../../../artifacts/tests/sigstore/mod.rs"]
mod sigstore;
#[path = "../support/mod.rs"]
mod support;
