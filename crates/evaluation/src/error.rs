//! The errors of preparing a policy.

use proviso_artifacts::{FetchError, ReferenceError};
use proviso_crds::validation::FieldError;
use proviso_engines::wasm::EngineError;
use proviso_engines::{CompileError, SettingsError};

/// The error of a policy that cannot be prepared or evaluated.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A program or an expression does not compile.
    #[error("{field}: {error}")]
    Compile { field: String, error: CompileError },
    #[error("{0}")]
    Field(FieldError),
    #[error("{field}: {error}")]
    Reference { field: String, error: ReferenceError },
    #[error("{field}: {error}")]
    Fetch { field: String, error: Box<FetchError> },
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    /// The program refuses the policy's settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    Engine(#[from] EngineError),
}
