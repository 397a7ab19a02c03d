//! Gatekeeper's kinds, as far as they decide about requests: a `ConstraintTemplate` with its constraints. Pure.

mod constraint;
mod matches;
mod schema;
mod template;

pub use constraint::{Action, CONSTRAINTS, Constraint, ConstraintError};
pub use matches::{Kinds, Matches, Subject};
pub use template::{Code, TEMPLATES, Template};
