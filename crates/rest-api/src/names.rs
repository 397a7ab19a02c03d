//! Resource names (AIP-122).

use std::fmt;

use proviso_core::PolicyId;

/// The name of an experiment: `policies/<policy>/experiments/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExperimentName {
    pub policy: PolicyId,
    pub name: String,
}

impl fmt::Display for ExperimentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policies/{}/experiments/{}", self.policy, self.name)
    }
}
