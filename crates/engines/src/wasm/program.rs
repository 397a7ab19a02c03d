//! The program of a policy: a module with its settings and its host.

use std::sync::Arc;

use proviso_core::request::Chain;
use proviso_core::{Review, Verdict};
use serde_json::Value;

use super::answer;
use super::call::call;
use super::documents::DocumentCache;
use super::metadata::ExecutionMode;
use super::module::Module;
use super::payload::Payload;
use crate::{Deadline, EvaluationError, Host, NoHost, SettingsError, request};

/// A module with its settings and its host. Programs of the same module share its compiled code.
#[derive(Clone, Debug)]
pub struct Program {
    module: Module,
    mode: Option<ExecutionMode>,
    settings: Arc<[u8]>,
    host: Arc<dyn Host>,
    documents: Arc<DocumentCache>,
}

impl Program {
    /// Creates a program without a host. `settings` is the JSON text of an object, `{}` if the policy has no settings. The
    /// guest gets the text unchanged.
    ///
    /// The execution mode is the only mode of the module. Compiled Rego has several modes and needs [`Self::in_mode`].
    #[must_use]
    pub fn new(module: Module, settings: impl Into<Arc<[u8]>>) -> Self {
        let mode = module.only_mode();
        Self { module, mode, settings: settings.into(), host: Arc::new(NoHost), documents: Arc::default() }
    }

    /// Sets the execution mode, which [`Module::mode`] returns.
    #[must_use]
    pub fn in_mode(self, mode: ExecutionMode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Sets the host that answers the calls of the policy.
    #[must_use]
    pub fn with_host(self, host: Arc<dyn Host>) -> Self {
        Self { host, documents: Arc::default(), ..self }
    }

    /// Evaluates a review in a fresh instance of the module.
    ///
    /// # Errors
    /// Returns an [`EvaluationError`] if the guest traps, fails, exceeds a limit or gives an invalid answer, if no evaluation
    /// slot is free by the deadline, or if the module is compiled Rego without an execution mode.
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

    /// Evaluates the next policy of a chain in a fresh instance of the module. A waPC module or a WASI command gets the input of the chain
    /// as the request of a review; `mutated_object` of its answer is its result. Compiled Rego of the mode `opa` gets the input as it
    /// is. Returns `None` if the result is undefined.
    ///
    /// # Errors
    /// The errors of [`Self::evaluate`], and [`EvaluationError::Failed`] in the mode `gatekeeper`.
    pub async fn evaluate_request(&self, chain: &Chain, deadline: Deadline) -> Result<Option<Value>, EvaluationError> {
        let payload = match self.mode {
            Some(ExecutionMode::KubewardenWapc | ExecutionMode::Wasi) => {
                Payload::validate(&request::to_review(chain)?, Arc::clone(&self.settings))
            }
            Some(mode @ ExecutionMode::Opa) => {
                Payload::rego(request::to_json(&chain.input())?, self.data(mode, deadline).await?)
            }
            Some(ExecutionMode::Gatekeeper) | None => {
                return Err(EvaluationError::Failed("compiled Rego of a request policy needs the mode opa".into()));
            }
        };
        let response = call(&self.module, payload, Arc::clone(&self.host), deadline).await?;
        match self.mode {
            Some(ExecutionMode::Opa) => answer::rego::value(&response),
            _ => answer::request_result(&response).map(Some),
        }
    }

    /// Has the guest validate its settings. Compiled Rego accepts all settings.
    ///
    /// # Errors
    /// Returns [`SettingsError::Refused`] if the guest rejects the settings, and [`SettingsError::EvaluationFailed`] if the
    /// validation itself fails.
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
