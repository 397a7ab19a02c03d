//! The errors of reading objects.

use proviso_core::policy_id::PolicyIdError;

/// The error of reading an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error(transparent)]
    Name(#[from] PolicyIdError),
    #[error("{field}: {error}")]
    Field { field: &'static str, error: serde_json::Error },
}
