//! Gatekeeper's kinds, as far as they decide: a `ConstraintTemplate` with its `Constraint`. Pure.

mod constraint;
mod matches;
mod schema;
mod template;

pub use constraint::{Action, Constraint, ConstraintError};
pub use matches::{Kinds, Matches, Subject};
pub use template::{Code, Template};

/// The API group of constraints.
pub const CONSTRAINTS: &str = "constraints.gatekeeper.sh";
/// The API group of templates.
pub const TEMPLATES: &str = "templates.gatekeeper.sh";
