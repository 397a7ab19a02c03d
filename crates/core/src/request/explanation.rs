//! Explains a field of an outcome: the policy that set it, and the constraints that hold it.

use serde::Serialize;
use serde_json::Value;

use super::outcome::{Outcome, TrailEntry};
use super::path::{FieldPath, Located};

/// The explanation of a field.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation<'a> {
    /// The value in the final payload; `None` if the field does not exist.
    pub value: Option<&'a Value>,
    /// The last policy that changed the field, a parent of it, or a field within it; `None` if the value is the caller's.
    pub set_by: Option<&'a TrailEntry>,
    /// The constraints that bind the field, in the order of their policies.
    pub holds: Vec<Hold<'a>>,
}

/// A constraint that binds a field.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold<'a> {
    pub policy: &'a TrailEntry,
    /// The constrained field.
    pub field: &'a FieldPath,
    pub relation: Relation,
    /// A JSON Schema.
    pub constraint: &'a Value,
    /// True if the constraint allows only one value, or no value.
    pub is_lock: bool,
}

/// The relation of a constrained field to the field that is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Relation {
    /// The constraint is on the field itself.
    Field,
    /// The constraint is on a parent of the field.
    Parent,
    /// The constraint is on a field within it: a later policy can neither remove the field nor replace it by another kind of value.
    Child,
}

impl Outcome {
    /// Explains a field.
    #[must_use]
    pub fn explain<'a>(&'a self, field: &FieldPath) -> Explanation<'a> {
        let value = match field.locate(&self.payload) {
            Located::Present(value) => Some(value),
            Located::Absent | Located::Misplaced { .. } => None,
        };
        let is_set_by =
            |entry: &&TrailEntry| entry.patched.iter().any(|path| path.starts_with(field) || field.starts_with(path));
        let holds = self.trail.iter().flat_map(|entry| {
            entry.constrained.iter().filter_map(move |constrained| {
                let relation = if constrained.field == *field {
                    Relation::Field
                } else if field.starts_with(&constrained.field) {
                    Relation::Parent
                } else if constrained.field.starts_with(field) {
                    Relation::Child
                } else {
                    return None;
                };
                let (field, constraint, is_lock) = (&constrained.field, &constrained.constraint, constrained.is_lock);
                Some(Hold { policy: entry, field, relation, constraint, is_lock })
            })
        });
        Explanation { value, set_by: self.trail.iter().rev().find(is_set_by), holds: holds.collect() }
    }
}
