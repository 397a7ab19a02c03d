//! The program of a revision: code that an engine runs, the request policies of the table, or the content of a configuration policy.

use std::sync::Arc;

use proviso_core::request::{Chain, ConstraintCache, ObjectBinding};
use proviso_engines::{Deadline, EvaluationError, Program, SettingsError};
use serde_json::Value;

use crate::configuration::Content;

/// The error of an evaluation of a configuration policy. The routes refuse such a request before.
pub const NO_VERDICT: &str = "the policy configures components, and decides about no requests";

/// The program of a revision.
#[derive(Debug)]
pub enum RevisionProgram {
    /// Code with its settings.
    Code(Program),
    /// The request policies of the table decide about a part of the object. No engine can run this program, because it needs the table.
    Requests(ObjectRequests),
    /// The policy configures components, and evaluates no requests.
    Configuration(Arc<Content>),
}

/// The place of requests in objects, and the cache for their evaluation.
#[derive(Debug)]
pub struct ObjectRequests {
    pub binding: ObjectBinding,
    pub cache: Arc<ConstraintCache>,
}

impl RevisionProgram {
    /// Returns the engine's name in logs and metrics.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Code(program) => program.engine(),
            Self::Requests(_) => "requests",
            Self::Configuration(_) => "configuration",
        }
    }

    /// Returns true if an evaluation may need memory of wasm instances.
    #[must_use]
    pub fn may_use_wasm(&self) -> bool {
        matches!(self, Self::Code(Program::Wasm(_) | Program::Group(_)))
    }

    /// Evaluates the program for the next policy of a chain: see [`Program::evaluate_request`].
    ///
    /// # Errors
    /// Returns an error if the program has no result.
    pub async fn evaluate_request(&self, chain: &Chain, deadline: Deadline) -> Result<Option<Value>, EvaluationError> {
        match self {
            Self::Code(program) => program.evaluate_request(chain, deadline).await,
            // The validation refuses such a spec.
            Self::Requests(_) => Err(EvaluationError::Failed("a chain cannot be a part of a chain".to_owned())),
            Self::Configuration(_) => Err(EvaluationError::Failed(NO_VERDICT.to_owned())),
        }
    }

    /// Has the program validate its settings.
    ///
    /// # Errors
    /// Returns an error if the program refuses its settings.
    pub async fn validate_settings(&self, deadline: Deadline) -> Result<(), SettingsError> {
        match self {
            Self::Code(program) => program.validate_settings(deadline).await,
            Self::Requests(_) | Self::Configuration(_) => Ok(()),
        }
    }
}

impl From<Program> for RevisionProgram {
    fn from(program: Program) -> Self {
        Self::Code(program)
    }
}
