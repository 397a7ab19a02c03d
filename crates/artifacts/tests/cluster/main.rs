//! Tests of modules, signatures and mirrors with a real OCI registry.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod identities;
mod mirrors_and_proxies;
mod registry;
#[path = "../sigstore/mod.rs"]
mod sigstore;
#[path = "../support/mod.rs"]
mod support;
mod verification;
