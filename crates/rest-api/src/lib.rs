//! The REST API for policies and experiments (AIP-236): resource names, update masks, filters, pages, errors and
//! long-running operations. A [`PolicyStore`] stores the policies and experiments. The server that mounts the [`router()`]
//! authenticates callers.

mod body;
mod duration;
mod error;
mod filter;
mod handlers;
pub mod kubernetes;
mod mask;
mod methods;
mod names;
mod openapi;
mod operation;
mod page;
mod resources;
mod router;
mod store;

pub use error::{Code, Error, FieldViolation};
pub use names::ExperimentName;
pub use openapi::document;
pub use operation::{
    AwaitedEffect, Effect, MAX_OPERATIONS, OPERATION_LIFETIME, OperationRecord, OperationResult, OperationSummary,
    Progress, StoredOperation, has_expired, removable,
};
pub use proviso_crds::names::is_reserved;
pub use router::{MAX_BODY, refuse, router};
pub use store::{
    Caller, Change, CommitPreconditions, Meta, PolicyStore, Preview, State, StoredExperiment, StoredPolicy,
};
