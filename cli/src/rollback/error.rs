//! The errors of planning a rollback.

use proviso_core::PolicyId;

/// Why a rollback is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{policy} has nothing to go back to: no other generation that was live is kept")]
    Nothing { policy: PolicyId },
    #[error("generation {generation} of {policy} is not kept")]
    NotKept { policy: PolicyId, generation: i64, kept: Vec<i64> },
    #[error("{policy} is being deleted")]
    Deleted { policy: PolicyId },
    #[error("which generation to go back to cannot be told: {cause}")]
    Blind { policy: PolicyId, cause: String },
}

impl PlanError {
    /// Returns what a person can do about the error.
    #[must_use]
    pub fn remedy(&self, program: &str) -> Option<String> {
        match self {
            Self::Nothing { policy } => {
                Some(format!("`{program} revisions list {policy}` shows what is kept; --to takes any of it."))
            }
            Self::NotKept { kept, .. } if kept.is_empty() => Some("None is kept.".to_owned()),
            Self::NotKept { kept, .. } => {
                Some(format!("Kept: {}.", kept.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")))
            }
            Self::Deleted { .. } => None,
            Self::Blind { policy, .. } => Some(format!(
                "Name it: {program} rollback {policy} --to GENERATION. The operator refuses what is not kept."
            )),
        }
    }
}
