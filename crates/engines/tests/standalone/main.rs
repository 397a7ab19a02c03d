//! Tests of the engines through their public API: CEL, Rego, wasm and groups.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cel;
mod conformance;
#[path = "../support/deadline.rs"]
mod deadline;
mod group;
mod ledger;
mod memory;
#[path = "../support/places.rs"]
mod places;
mod rego;
mod request;
#[cfg(feature = "wasm")]
mod wasm;
