//! A module with its settings: the policy.

use std::sync::Arc;

use proviso_core::{Review, Verdict};

use super::answer;
use super::call::call;
use super::module::Module;
use super::payload::Payload;
use crate::{Deadline, EvaluationError, SettingsError};

/// A module with its settings. Costs little more than the settings where the module is loaded already.
#[derive(Clone, Debug)]
pub struct Program {
    module: Module,
    settings: Arc<[u8]>,
}

impl Program {
    /// The settings are the JSON text of an object, `{}` where the policy has none; they reach the guest as they are.
    #[must_use]
    pub fn new(module: Module, settings: impl Into<Arc<[u8]>>) -> Self {
        Self { module, settings: settings.into() }
    }

    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let payload = Payload::validate(review, self.settings.clone());
        let response = call(&self.module, payload, deadline).await?;
        answer::verdict(&response, review)
    }

    pub async fn validate_settings(&self, deadline: Deadline) -> Result<(), SettingsError> {
        let payload = Payload::validate_settings(self.settings.clone());
        let response = call(&self.module, payload, deadline).await?;
        answer::settings(&response)
    }
}
