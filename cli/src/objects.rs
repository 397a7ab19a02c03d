//! Policies, revisions and experiments of a cluster or of a server with the REST API. They are read here and not by the
//! client: an invalid object, such as one of another version of Proviso, must not hide the others. Specs stay JSON, so that
//! a comparison loses nothing.

mod error;
mod experiment;
mod fields;
mod policy;
mod revision;
mod served;
#[cfg(test)]
pub mod tests;

pub use error::ObjectError;
pub use experiment::ExperimentObject;
pub use policy::PolicyObject;
pub use revision::RevisionObject;
