//! Tests of the operator's binary with a real API server. The tests play the policy servers: they write the status
//! that leaders and replicas would write.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod actions;
mod admission;
mod callers;
mod calls;
mod configuration_api;
mod configuration_policies;
mod configuration_templates;
mod experiments;
mod failover;
mod hostile_requests;
mod http_proxy;
mod killed;
mod kustomize;
mod lifecycle;
mod malformed_objects;
mod outages;
mod policy_servers;
mod request_policies;
mod rotation;
mod subscriptions;
mod tenants;
mod test_cluster;
mod trust_domains;
mod uniqueness;
