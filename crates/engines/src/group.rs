//! WebAssembly modules with the waPC calling convention of Kubewarden policies.

use proviso_core::{Review, Verdict};

use crate::{Deadline, EvaluationError, SettingsError};

/// A module with its settings.
#[derive(Debug)]
pub struct Program {}

impl Program {
    pub async fn evaluate(&self, _review: &Review, _deadline: Deadline) -> Result<Verdict, EvaluationError> {
        Err(EvaluationError::Failed("not yet".into()))
    }

    pub async fn validate_settings(&self, _deadline: Deadline) -> Result<(), SettingsError> {
        Ok(())
    }
}
