//! The errors of a program, one type for each stage: compilation, settings, evaluation. `reason()` returns the stable name
//! that conditions, metrics and logs carry.

use proviso_core::{Failure, Reason};

/// The error of compiling or loading a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The source or module is malformed.
    #[error("{0}")]
    Invalid(String),
    /// The source or module may be valid, but this version does not run it.
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

/// The error of validating the settings of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The program rejected its settings. The text is the program's own message.
    #[error("the policy refused its settings: {0}")]
    Refused(String),
    /// The evaluation that validates the settings failed.
    #[error("the policy could not validate its settings: {0}")]
    EvaluationFailed(#[from] EvaluationError),
}

impl SettingsError {
    #[must_use]
    pub fn reason(&self) -> Reason {
        Reason::SETTINGS_INVALID
    }
}

/// The error of an evaluation that reaches no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The evaluation did not end before its deadline. The text is Kubewarden's, because dashboards of its users match it.
    #[error("Policy execution interrupted because it exceeded the allowed execution time")]
    DeadlineExceeded,
    /// The evaluation has not begun, or has not ended, because other evaluations use a resource. The program has not decided: the caller
    /// may try again.
    #[error("overloaded: too many evaluations at the same time")]
    Overloaded(Shortage),
    /// The program stopped: a trap, an exhausted limit, an error that it raised, a panic of its interpreter.
    #[error("internal server error: {0}")]
    Failed(String),
    /// The program answered, but the answer violates its contract.
    #[error("internal server error: the policy's answer is not valid: {0}")]
    InvalidAnswer(String),
}

/// The resource that an evaluation did not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The evaluation did not begin before its deadline: it got no evaluation slot, or no CPU.
    Cpu,
    /// The policy's share of the memory of wasm instances is in use.
    Memory,
}

impl EvaluationError {
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::Overloaded(_) => "Overloaded",
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
