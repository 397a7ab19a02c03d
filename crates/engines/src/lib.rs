//! Compiles and runs one policy program under limits of time, memory and stack.
//! Knows reviews and verdicts; knows no network, no Kubernetes and no policy objects.

pub mod cel;
mod deadline;
pub mod error;
pub mod group;
pub mod host;
mod isolation;
mod patch;
pub mod rego;
#[cfg(feature = "wasm")]
pub mod wasm;

use std::sync::Arc;

use proviso_core::{Review, Verdict};

pub use deadline::Deadline;
pub use error::{CompileError, EvaluationError, SettingsError};
pub use host::{Host, HostCall, NoHost};

/// A program with its settings, ready to decide. Shared by all requests; each evaluation starts afresh. A clone is not
/// compiled again: it is for another host ([`Program::with_host`]).
#[derive(Clone, Debug)]
pub enum Program {
    #[cfg(feature = "wasm")]
    Wasm(wasm::Program),
    Rego(rego::Program),
    Cel(cel::Program),
    Group(group::Program),
}

impl Program {
    /// Decides on a review. Mode, `mutating` and message of the policy are not applied yet.
    ///
    /// # Errors
    /// When the program comes to no decision. That is a denial: see [`proviso_core::Failure`].
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        match self {
            #[cfg(feature = "wasm")]
            Self::Wasm(program) => program.evaluate(review, deadline).await,
            Self::Rego(program) => program.evaluate(review, deadline).await,
            Self::Cel(program) => program.evaluate(review, deadline).await,
            Self::Group(program) => Box::pin(program.evaluate(review, deadline)).await,
        }
    }

    /// Asks the program whether it accepts its settings. Rego and CEL have no such question: they accept all.
    ///
    /// # Errors
    /// When the program refuses its settings, or comes to no answer.
    pub async fn validate_settings(&self, deadline: Deadline) -> Result<(), SettingsError> {
        match self {
            #[cfg(feature = "wasm")]
            Self::Wasm(program) => program.validate_settings(deadline).await,
            Self::Rego(_) | Self::Cel(_) => Ok(()),
            Self::Group(program) => Box::pin(program.validate_settings(deadline)).await,
        }
    }

    /// The same with a host that answers what it asks. The members of a group have their own.
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

    /// The engine's name in logs and metrics.
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
