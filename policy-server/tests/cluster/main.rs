//! Tests of the policy server with a real API server: as its webhook, or as a replica that follows its revisions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod context;
mod faults;
mod leader_killed;
mod leadership;
mod matching;
mod metrics;
mod modules;
mod object_requests;
mod pins;
mod previews;
mod quickstart;
mod readiness;
mod registry;
mod requests;
mod restarts;
mod revisions;
mod skew;
mod stalled_disk;
#[path = "../support/mod.rs"]
mod support;
mod tenants;
mod webhooks;
