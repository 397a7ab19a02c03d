//! Gatekeeper's kinds that decide about requests: `ConstraintTemplate` and its constraints.

mod constraint;
mod matches;
mod schema;
mod template;

pub use constraint::{Action, CONSTRAINTS_GROUP, Constraint, ConstraintError};
pub use matches::{Kinds, Matches, Subject};
pub use template::{Code, TEMPLATES_GROUP, Template};
