//! Evaluates policies without a cluster, for `proviso run`, `proviso test`, audits and replays.
//!
//! [`PolicyFile`] reads a policy from a manifest, an [`Evaluator`] compiles its program, and the [`PreparedPolicy`] answers
//! reviews as a policy server would. [`review`] makes reviews of objects, [`suite`] runs test suites, [`gatekeeper`] reads
//! `ConstraintTemplates` and their constraints.
//!
//! The crate reads files and fetches modules, but prints nothing. Errors name the file and the field.

mod blocking;
pub mod documents;
mod error;
mod evaluator;
pub mod gatekeeper;
mod inventory;
mod modules;
mod plural;
mod policy_file;
pub mod policy_spec;
mod requests;
pub mod review;
mod service_request;
pub mod suite;

pub use error::PrepareError;
pub use evaluator::Evaluator;
pub use plural::plural;
pub use policy_file::{Answer, PatchError, PolicyFile, PreparedPolicy, namespaces};
pub use requests::{RequestPolicies, RequestPoliciesError};
pub use service_request::ServiceRequest;
