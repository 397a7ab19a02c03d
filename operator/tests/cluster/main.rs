//! The operator with a real API server, as the real program. Policy servers are played by the tests: they say what leaders and
//! replicas would say.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod actions;
mod admission;
mod calls;
mod experiments;
mod failover;
mod kustomize;
mod lifecycle;
mod malformed_objects;
mod policy_servers;
mod rotation;
mod stage;
