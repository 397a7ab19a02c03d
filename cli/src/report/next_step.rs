//! The next steps of a user.

use serde::Serialize;

/// A step that the user can do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextStep {
    /// The description of the step.
    pub what: String,
    /// The command that does the step, ready to be copied; `None` if no single command does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The names that appear in the commands of next steps.
#[derive(Clone, Debug)]
pub struct CommandContext {
    /// The name by which the user calls this program.
    pub program: &'static str,
    /// The namespace of the operator.
    pub proviso_namespace: String,
}
