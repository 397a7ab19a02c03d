//! Tests of the policy server over a folder of manifests, with the real program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod api;
mod callers;
mod client_ca;
mod commits;
mod compiling;
mod confidential;
mod configuration;
mod context;
mod expiry;
mod malformed;
mod object_requests;
mod operations;
mod previews;
mod reload;
mod request_policies;
mod request_previews;
mod requests;
mod serving;
mod startup;
#[path = "../support/mod.rs"]
mod support;
mod uniqueness;
