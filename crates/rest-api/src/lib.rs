//! The REST API for policies and experiments (AIP-236): resource names, update masks, filters, pages, errors and
//! long-running operations. The management of request policies, as the DCM project has it, is another API over the same policies. A
//! [`PolicyStore`] stores the policies and experiments. The server that mounts the routers authenticates callers.

mod body;
mod duration;
mod error;
mod filter;
mod handlers;
pub mod kubernetes;
mod mask;
mod methods;
mod names;
mod namespace_tenants;
mod openapi;
mod operation;
mod page;
mod problem;
mod request_policies;
mod resources;
mod router;
mod store;
mod uniqueness;

pub use error::{Code, Error, FieldViolation};
pub use names::ExperimentName;
pub use namespace_tenants::NamespaceTenants;
pub use openapi::document;
pub use operation::{
    AwaitedEffect, Effect, MAX_OPERATIONS, OPERATION_LIFETIME, OperationRecord, OperationResult, OperationSummary,
    Progress, StoredOperation, has_expired, removable,
};
pub use problem::Problem;
pub use proviso_crds::names::is_reserved;
pub use request_policies::{HEALTH, health_router, router as request_policies_router};
pub use router::{MAX_BODY, refuse, router};
pub use store::{
    Caller, Change, CommitPreconditions, Meta, PolicyStore, Preview, SERVING_TIMEOUT, State, StoredExperiment,
    StoredPolicy,
};
pub use uniqueness::UniqueKeys;
