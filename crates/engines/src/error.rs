//! What can go wrong with a program, by when it goes wrong. `reason()` is the stable name that conditions,
//! metrics and logs carry.

use proviso_core::{Failure, Reason};

/// A program that cannot be made ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The source or module is wrong.
    #[error("{0}")]
    Invalid(String),
    /// It may be right, but this version does not run it.
    #[error("{0}")]
    Unsupported(String),
}

impl CompileError {
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Invalid(_) => Reason::COMPILE_ERROR,
            Self::Unsupported(_) => Reason::UNSUPPORTED,
        }
    }
}

/// Settings that a program does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The program's own words.
    #[error("the policy refused its settings: {0}")]
    Refused(String),
    #[error("the policy came to no answer about its settings: {0}")]
    Unanswered(#[from] EvaluationError),
}

impl SettingsError {
    #[must_use]
    pub fn reason(&self) -> Reason {
        Reason::SETTINGS_INVALID
    }
}

/// An evaluation that came to no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The text is Kubewarden's: its users' dashboards look for it.
    #[error("Policy execution interrupted because it exceeded the allowed execution time")]
    DeadlineExceeded,
    /// Every place for an evaluation stayed taken until the deadline.
    #[error("the policy server is overloaded: no place for this evaluation became free in time")]
    Overloaded,
    /// The program stopped: a trap, an exhausted limit, an error that it raised, a panic of its interpreter.
    #[error("internal server error: {0}")]
    Failed(String),
    /// It answered, but not what its contract asks for.
    #[error("internal server error: the policy's answer is not valid: {0}")]
    InvalidAnswer(String),
}

impl EvaluationError {
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::Overloaded => "Overloaded",
            Self::Failed(_) => "Failed",
            Self::InvalidAnswer(_) => "InvalidAnswer",
        }
    }
}

impl From<&EvaluationError> for Failure {
    fn from(error: &EvaluationError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}
