//! A problem of a policy, a revision or an experiment.

use serde::Serialize;

/// The reason why something does not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub reason: String,
    pub message: String,
}
