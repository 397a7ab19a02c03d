//! The implementations of the methods. Each reads the request, calls the store, and returns the response.

mod effects;

use std::sync::Arc;
use std::time::Duration;

use proviso_core::PolicyId;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::body;
use crate::error::{Code, Error};
use crate::filter::{Field, Filter};
use crate::methods::{Method, Rpc};
use crate::names::ExperimentName;
use crate::operation::{AwaitedEffect, Effect, Progress};
use crate::page::Page;
use crate::resources::{EXPERIMENT_FILTERS, OPERATION_FILTERS, POLICY_FILTERS};
use crate::store::{Caller, PolicyStore, State, StoredPolicy};

/// The time that `:wait` waits for an operation if the request sets no timeout.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
/// The maximum time that `:wait` waits for an operation.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The interval at which `:wait` polls the operation.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

type Result<T> = std::result::Result<T, Error>;

/// The API over a store.
#[derive(Debug)]
pub(crate) struct Api<S> {
    pub store: Arc<S>,
}

impl<S> Clone for Api<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store) }
    }
}

/// One call of a method.
#[derive(Debug)]
pub(crate) struct Call {
    pub method: &'static Method,
    /// The values of the variables in the path, in the order of the path.
    pub variables: Vec<String>,
    /// The query parameters of the method, by their names in camel case.
    pub query: Map<String, Value>,
    pub body: Vec<u8>,
    /// The caller; `None` if the server did not authenticate one.
    pub caller: Option<Caller>,
}

impl Call {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name)?.as_str().filter(|value| !value.is_empty())
    }

    fn required_parameter(&self, name: &str) -> Result<&str> {
        self.parameter(name).ok_or_else(|| Error::invalid(name, "is missing from the query"))
    }

    fn policy(&self) -> Result<PolicyId> {
        let id = self.variables.first().map(String::as_str).unwrap_or_default();
        id.parse().map_err(|error: proviso_core::policy_id::PolicyIdError| Error::invalid("name", error.to_string()))
    }

    fn experiment(&self) -> Result<ExperimentName> {
        let name = self.variables.get(1).cloned().unwrap_or_default();
        experiment_id("name", &name)?;
        Ok(ExperimentName { policy: self.policy()?, name })
    }

    fn object(&self) -> Result<Map<String, Value>> {
        body::object(&self.body)
    }

    fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }
}

fn experiment_id(field: &str, name: &str) -> Result<()> {
    proviso_core::policy_id::check_name(name).map_err(|error| Error::invalid(field, error.to_string()))
}

/// Parses a duration of proto-JSON, such as `3.5s`. `None` means that the text is not a duration.
fn duration(text: &str) -> Option<Duration> {
    let seconds: f64 = text.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Returns the requested page of the resources that match the filter. `collection` is the field of the response with the
/// resources, and `parent` the resource that the list belongs to; empty for a list without a parent.
fn list(call: &Call, collection: &str, parent: &str, fields: &[Field], resources: Vec<Value>) -> Result<Value> {
    if call.parameter("orderBy").is_some() {
        return Err(Error::invalid("orderBy", "is not supported: lists are ordered by name"));
    }
    let text = call.parameter("filter").unwrap_or_default();
    let filter = Filter::parse(text, fields)?;
    let page = Page::new(call.parameter("pageSize"), call.parameter("pageToken"), &[collection, parent, text])?;
    let resources =
        resources.into_iter().filter(|resource| filter.as_ref().is_none_or(|filter| filter.matches(resource)));
    Ok(page.paginate(collection, resources.collect()))
}

impl<S: PolicyStore> Api<S> {
    pub(crate) async fn call(&self, call: &Call) -> Result<Value> {
        match call.method.rpc {
            Rpc::ListPolicies => self.list_policies(call).await,
            Rpc::GetPolicy => Ok(self.store.policy(call.caller(), &call.policy()?).await?.to_json()),
            Rpc::CreatePolicy => self.create_policy(call).await,
            Rpc::UpdatePolicy => self.update_policy(call).await,
            Rpc::DeletePolicy => self.delete_policy(call).await,
            Rpc::ListExperiments => self.list_experiments(call).await,
            Rpc::GetExperiment => Ok(self.store.experiment(call.caller(), &call.experiment()?).await?.to_json()),
            Rpc::CreateExperiment => self.create_experiment(call).await,
            Rpc::UpdateExperiment => self.update_experiment(call).await,
            Rpc::DeleteExperiment => self.delete_experiment(call).await,
            Rpc::StartPreview | Rpc::StopPreview => self.preview(call).await,
            Rpc::Commit => self.commit(call).await,
            Rpc::ListOperations => self.list_operations(call).await,
            Rpc::GetOperation => self.operation(call, &call.operation()?).await.map(|(operation, _)| operation),
            Rpc::WaitOperation => self.wait(call).await,
            Rpc::Document => Ok(crate::openapi::document()),
        }
    }

    async fn list_policies(&self, call: &Call) -> Result<Value> {
        let policies = self.store.policies(call.caller()).await?;
        list(call, "policies", "", POLICY_FILTERS, policies.iter().map(StoredPolicy::to_json).collect())
    }

    /// Lists the experiments of one policy. The policy `-` means all policies (AIP-159).
    async fn list_experiments(&self, call: &Call) -> Result<Value> {
        let parent = call.variables.first().map(String::as_str).unwrap_or_default();
        let policy = if parent == "-" { None } else { Some(call.policy()?) };
        if let Some(policy) = &policy {
            self.store.policy(call.caller(), policy).await?;
        }
        let experiments = self.store.experiments(call.caller(), policy.as_ref()).await?;
        let experiments = experiments.iter().map(crate::store::StoredExperiment::to_json).collect();
        list(call, "experiments", parent, EXPERIMENT_FILTERS, experiments)
    }

    /// Lists one operation for each policy: the rollout of its newest version. Operations are not stored, so the list
    /// cannot include older ones.
    async fn list_operations(&self, call: &Call) -> Result<Value> {
        let operation = |policy: &StoredPolicy| {
            let progress = match policy.state {
                State::Pending | State::Updating => Progress::Running(
                    policy.problem.as_ref().map(|problem| problem.message.clone()).unwrap_or_default(),
                ),
                State::Active | State::Disabled => Progress::Done,
                State::Failed => Progress::Failed(policy.to_error()),
            };
            awaited_policy(Effect::Update, policy).operation(&progress, Some(policy.to_json()))
        };
        let policies = self.store.policies(call.caller()).await?;
        list(call, "operations", "", OPERATION_FILTERS, policies.iter().map(operation).collect())
    }

    /// Returns the current state of the operation, and true if the operation has ended.
    async fn operation(&self, call: &Call, awaited: &AwaitedEffect) -> Result<(Value, bool)> {
        let mut progress = self.store.progress(call.caller(), awaited).await?;
        let has_resource = !matches!(awaited.effect, Effect::Delete | Effect::Commit);
        let resource = if progress == Progress::Done && has_resource {
            let resource = match awaited.experiment() {
                None => self.store.policy(call.caller(), &awaited.policy).await.map(|policy| policy.to_json()),
                Some(name) => self.store.experiment(call.caller(), &name).await.map(|experiment| experiment.to_json()),
            };
            match resource {
                Ok(resource) => Some(resource),
                // The resource was deleted after the operation ended.
                Err(error) if error.code == Code::NotFound => {
                    progress = Progress::Failed(error);
                    None
                }
                Err(error) => return Err(error),
            }
        } else {
            None
        };
        let is_done = !matches!(progress, Progress::Running(_));
        Ok((awaited.operation(&progress, resource), is_done))
    }

    async fn wait(&self, call: &Call) -> Result<Value> {
        let message = body::message("", call.object()?, &["name", "timeout"])?;
        let wait_time = match message.get("timeout") {
            None | Some(Value::Null) => DEFAULT_WAIT,
            Some(timeout) => timeout
                .as_str()
                .and_then(duration)
                .ok_or_else(|| Error::invalid("timeout", "is not a duration such as \"10s\""))?,
        };
        let until = Instant::now() + wait_time.min(MAX_WAIT);
        let awaited = call.operation()?;
        loop {
            let (operation, is_done) = self.operation(call, &awaited).await?;
            if is_done || Instant::now() >= until {
                return Ok(operation);
            }
            tokio::time::sleep_until(until.min(Instant::now() + POLL_INTERVAL)).await;
        }
    }
}

impl Call {
    fn operation(&self) -> Result<AwaitedEffect> {
        self.variables.first().map(String::as_str).unwrap_or_default().parse()
    }
}

fn awaited_policy(effect: Effect, policy: &StoredPolicy) -> AwaitedEffect {
    let (uid, version) = (policy.meta.uid.clone(), policy.meta.version.clone());
    AwaitedEffect { effect, policy: policy.id.clone(), experiment: None, uid, version }
}

/// Checks that the name in a body, if the body has one, is the name in the path.
fn check_name_matches(given: Option<&str>, name: &str) -> Result<()> {
    match given {
        Some(given) if given != name => {
            Err(Error::invalid("name", format!("is {given:?}, but the name in the path is {name:?}")))
        }
        _ => Ok(()),
    }
}

/// Parses the body of a custom method. It may have the name of the resource and `fields`, all of them strings.
fn custom_method_body(call: &Call, name: &str, fields: &[&str]) -> Result<Map<String, Value>> {
    let known: Vec<&str> = fields.iter().copied().chain(["name"]).collect();
    let message = body::message("", call.object()?, &known)?;
    for (field, value) in &message {
        if !value.is_string() && !value.is_null() {
            return Err(Error::invalid(field, "is not a string"));
        }
    }
    check_name_matches(message.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()), name)?;
    Ok(message)
}
