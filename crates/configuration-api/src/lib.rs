//! The REST API for the configuration of components: the routes of ONAP's policy-handler, deployment-handler and config-binding
//! service, the read-only keys of Consul, and Proviso's own routes for subscriptions. docs/reference/onap-api.md has each route, and
//! docs/adr/0038 the decisions. A [`ConfigurationStore`] has the policies and subscriptions. The server that mounts the router
//! authenticates callers.

mod answer;
mod api;
mod binding;
mod bound;
mod call;
mod components;
mod consul;
mod deployed;
mod filter;
mod handler;
mod health;
mod policies;
mod router;
mod store;
mod subscriptions;
mod watches;

pub use answer::refuse;
pub use health::HEALTHCHECK;
pub use router::{health_router, router};
pub use store::{Body, Changes, ConfigurationStore, Permission, instance_of};
