//! Request policies: a chain of policies decides about a service request, changes its payload, constrains its fields and chooses
//! a service provider. Source: the ADR "Policy API & Execution Engine" of the DCM project.
//!
//! The caller evaluates the programs: [`Chain::start`] returns the first policy to evaluate, and [`Chain::apply`] takes the
//! result of the policy and returns the next one, or the [`Outcome`].

mod cache;
mod chain;
mod comparison;
mod constraints;
mod divergence;
mod explanation;
pub(crate) mod fragment;
mod input;
pub(crate) mod limits;
mod merge;
mod object;
mod outcome;
mod patch;
mod path;
mod payload;
mod policy;
mod provider;
mod provider_field;
mod references;
mod result;
mod writers;

pub use cache::ConstraintCache;
pub use chain::{Chain, Progress};
pub use comparison::{OutcomeComparison, OutcomeSummary};
pub use divergence::{ConstraintDivergence, FieldList, Pair, RequestDivergence};
pub use explanation::{Explanation, Hold, Relation};
pub use fragment::FragmentError;
pub use input::{Input, ProviderConstraintsInput, ProviderInput, PublishedInput};
pub use limits::{MAX_CONSTRAINTS, MAX_NESTING, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_VALUES};
pub use object::{ObjectBinding, ObjectBindingError, ObjectError};
pub use outcome::{Conflict, ConstrainedField, Decision, Outcome, TrailEntry};
pub use path::{FieldPath, FieldPathError};
pub use payload::{Request, RequestError};
pub use policy::{Criteria, Level, RequestPolicy, RevisionId};
pub use provider::{Provider, ProviderConstraints};
pub use result::{Constraint, PolicyResult, ResultError};

#[cfg(test)]
mod tests;
