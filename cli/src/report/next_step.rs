//! Next steps of a person.

use serde::Serialize;

/// A step that a person may take next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextStep {
    pub what: String,
    /// The whole command, to be copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The names in commands that a person copies.
#[derive(Clone, Debug)]
pub struct Place {
    /// The name by which a person calls this program.
    pub program: &'static str,
    pub proviso_namespace: String,
}
