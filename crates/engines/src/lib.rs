//! Compiles and runs one policy program under limits of time, memory and stack.
//! This crate knows reviews and verdicts, but no policy objects, and accesses neither the network nor Kubernetes.

mod budget;
pub mod cel;
mod deadline;
pub mod error;
pub mod group;
pub mod host;
mod isolation;
mod memory;
mod patch;
pub mod rego;
mod request;
mod template;
#[cfg(feature = "wasm")]
pub mod wasm;

use std::sync::Arc;

use proviso_core::request::Chain;
use proviso_core::{Review, Verdict};

use serde_json::Value;

pub use budget::{Budget, Pacing};
pub use deadline::Deadline;
pub use error::{CompileError, EvaluationError, SettingsError, Shortage};
pub use host::{Host, HostCall, NoHost};
pub use isolation::{demote_this_thread, run as isolated};
pub use memory::DEFAULT_MEMORY_LIMIT;
pub use template::{MAX_CONTENT, MAX_TEMPLATE};

/// A compiled program with its settings. All requests share one program, and each evaluation starts with fresh state.
/// Cloning does not compile again: clone a program to give it another host ([`Program::with_host`]).
#[derive(Clone, Debug)]
pub enum Program {
    #[cfg(feature = "wasm")]
    Wasm(wasm::Program),
    Rego(rego::Program),
    Cel(cel::Program),
    Group(group::Program),
}

impl Program {
    /// Evaluates a review. The caller still has to apply the mode, `mutating` and message of the policy to the verdict.
    ///
    /// # Errors
    /// Returns an [`EvaluationError`] if the program reaches no decision. Such an evaluation counts as a denial: see
    /// [`proviso_core::Failure`].
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        match self {
            #[cfg(feature = "wasm")]
            Self::Wasm(program) => program.evaluate(review, deadline).await,
            Self::Rego(program) => program.evaluate(review, deadline).await,
            Self::Cel(program) => program.evaluate(review, deadline).await,
            Self::Group(program) => Box::pin(program.evaluate(review, deadline)).await,
        }
    }

    /// Evaluates the program for the next policy of a chain of request policies. Returns the result for [`Chain::apply`]; `None` if
    /// it is undefined. Rego of the dialect `Request` and modules of the mode `opa` return their results as they are. Programs that
    /// answer a review with a verdict see the input of the chain as the request of the review: a denial becomes a rejection.
    ///
    /// # Errors
    /// Returns an [`EvaluationError`] if the program has no result, or if it cannot evaluate requests to services.
    pub async fn evaluate_request(&self, chain: &Chain, deadline: Deadline) -> Result<Option<Value>, EvaluationError> {
        match self {
            #[cfg(feature = "wasm")]
            Self::Wasm(program) => program.evaluate_request(chain, deadline).await,
            Self::Rego(program) => program.evaluate_request(chain, deadline).await,
            Self::Cel(program) => program.evaluate_request(chain, deadline).await,
            Self::Group(program) => Box::pin(program.evaluate_request(chain, deadline)).await,
        }
    }

    /// Has the program validate its settings. Rego and CEL programs accept all settings.
    ///
    /// # Errors
    /// Returns [`SettingsError::Refused`] if the program rejects its settings, and [`SettingsError::EvaluationFailed`] if the
    /// validation itself fails.
    pub async fn validate_settings(&self, deadline: Deadline) -> Result<(), SettingsError> {
        match self {
            #[cfg(feature = "wasm")]
            Self::Wasm(program) => program.validate_settings(deadline).await,
            Self::Rego(_) | Self::Cel(_) => Ok(()),
            Self::Group(program) => Box::pin(program.validate_settings(deadline)).await,
        }
    }

    /// Returns the program with `host` as its host. Returns a group unchanged, because each member has its own host.
    #[must_use]
    pub fn with_host(self, host: Arc<dyn Host>) -> Self {
        match self {
            #[cfg(feature = "wasm")]
            Self::Wasm(program) => Self::Wasm(program.with_host(host)),
            Self::Rego(program) => Self::Rego(program.with_host(host)),
            Self::Cel(program) => Self::Cel(program.with_host(host)),
            group @ Self::Group(_) => group,
        }
    }

    /// Sets the memory limit of one evaluation of an interpreted program, in bytes. Returns a wasm program and a group unchanged:
    /// the engine of a module has the limit, and each member of a group has its own.
    #[must_use]
    pub fn with_memory_limit(self, limit: usize) -> Self {
        match self {
            #[cfg(feature = "wasm")]
            wasm @ Self::Wasm(_) => wasm,
            Self::Rego(program) => Self::Rego(program.with_memory_limit(limit)),
            Self::Cel(program) => Self::Cel(program.with_memory_limit(limit)),
            group @ Self::Group(_) => group,
        }
    }

    /// Returns the engine's name in logs and metrics.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        match self {
            #[cfg(feature = "wasm")]
            Self::Wasm(_) => "wasm",
            Self::Rego(_) => "rego",
            Self::Cel(_) => "cel",
            Self::Group(_) => "group",
        }
    }
}
