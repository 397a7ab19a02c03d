//! A module with its settings and its host: the policy.

use std::sync::Arc;

use proviso_core::{Review, Verdict};

use super::answer;
use super::call::call;
use super::documents::Documents;
use super::metadata::ExecutionMode;
use super::module::Module;
use super::payload::Payload;
use crate::{Deadline, EvaluationError, Host, NoHost, SettingsError};

/// A module with its settings. Costs little more than the settings where the module is loaded already.
#[derive(Clone, Debug)]
pub struct Program {
    module: Module,
    mode: Option<ExecutionMode>,
    settings: Arc<[u8]>,
    host: Arc<dyn Host>,
    documents: Arc<Documents>,
}

impl Program {
    /// The settings are the JSON text of an object, `{}` where the policy has none; they reach the guest as they are.
    ///
    /// The policy may ask its host nothing, and is asked in the only way that its module has; see [`Self::in_mode`].
    #[must_use]
    pub fn new(module: Module, settings: impl Into<Arc<[u8]>>) -> Self {
        let mode = module.only_mode();
        Self { module, mode, settings: settings.into(), host: Arc::new(NoHost), documents: Arc::default() }
    }

    /// As [`Module::mode`] tells: compiled Rego is asked in one of two ways.
    #[must_use]
    pub fn in_mode(self, mode: ExecutionMode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Gives the policy what it may ask.
    #[must_use]
    pub fn with_host(self, host: Arc<dyn Host>) -> Self {
        Self { host, documents: Arc::default(), ..self }
    }

    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let payload = match self.mode {
            None => return Err(EvaluationError::Failed("compiled Rego needs a mode: opa or gatekeeper".into())),
            Some(ExecutionMode::KubewardenWapc | ExecutionMode::Wasi) => {
                Payload::validate(review, Arc::clone(&self.settings))
            }
            Some(mode @ ExecutionMode::Opa) => Payload::opa(review, self.data(mode, deadline).await?),
            Some(mode @ ExecutionMode::Gatekeeper) => {
                Payload::gatekeeper(review, &self.settings, self.data(mode, deadline).await?)
            }
        };
        let response = call(&self.module, payload, Arc::clone(&self.host), deadline).await?;
        match self.mode {
            Some(ExecutionMode::Opa) => answer::rego::admission(&response, review),
            Some(ExecutionMode::Gatekeeper) => answer::rego::violations(&response),
            Some(ExecutionMode::KubewardenWapc | ExecutionMode::Wasi) | None => answer::verdict(&response, review),
        }
    }

    /// Compiled Rego has no such question: it accepts all.
    pub async fn validate_settings(&self, deadline: Deadline) -> Result<(), SettingsError> {
        if matches!(self.mode, None | Some(ExecutionMode::Opa | ExecutionMode::Gatekeeper)) {
            return Ok(());
        }
        let payload = Payload::validate_settings(Arc::clone(&self.settings));
        let response = call(&self.module, payload, Arc::clone(&self.host), deadline).await?;
        answer::settings(&response)
    }

    async fn data(&self, mode: ExecutionMode, deadline: Deadline) -> Result<Arc<[u8]>, EvaluationError> {
        self.documents.data(mode, &self.settings, &*self.host, deadline).await
    }
}
