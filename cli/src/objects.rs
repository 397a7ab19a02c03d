//! Policies, revisions and experiments of a cluster or of a server with the REST API. The client reads untyped objects, and
//! this module parses them one by one, so that an invalid object, such as one of another version of Proviso, does not hide
//! the others. Specs stay JSON, so that a comparison loses nothing.

mod error;
mod experiment;
mod fields;
mod policy;
mod rest;
mod revision;
mod subscription;
#[cfg(test)]
pub mod tests;

pub use error::ObjectError;
pub use experiment::ExperimentObject;
pub use policy::PolicyObject;
pub use revision::RevisionObject;
pub use subscription::{SubscriptionName, SubscriptionObject};
