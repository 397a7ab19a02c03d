//! The errors of choosing the revision of a rollback.

use proviso_core::PolicyId;

/// The error of a rollback that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{policy} has no generation to roll back to: no other generation that was live is kept")]
    NoTarget { policy: PolicyId },
    #[error("generation {generation} of {policy} is not kept")]
    NotKept { policy: PolicyId, generation: i64, kept: Vec<i64> },
    #[error("{policy} is being deleted")]
    Deleted { policy: PolicyId },
    #[error("the generation to roll back to is unknown: {cause}")]
    UnknownGenerations { policy: PolicyId, cause: String },
}

impl PlanError {
    /// Returns advice for the user; `None` if the message of the error is enough.
    #[must_use]
    pub fn remedy(&self, program: &str) -> Option<String> {
        match self {
            Self::NoTarget { policy } => Some(format!(
                "`{program} revisions list {policy}` shows the kept generations; name one of them with --to."
            )),
            Self::NotKept { kept, .. } if kept.is_empty() => Some("No generation is kept.".to_owned()),
            Self::NotKept { kept, .. } => {
                let kept = kept.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                Some(format!("Kept generations: {kept}."))
            }
            Self::Deleted { .. } => None,
            Self::UnknownGenerations { policy, .. } => Some(format!(
                "Name it: {program} rollback {policy} --to GENERATION. The operator refuses a generation that is not kept."
            )),
        }
    }
}
