//! The methods with effects. Each returns an operation (AIP-151).

use proviso_core::PolicyId;
use proviso_core::experiment::MAX_EXPERIMENTS;
use serde_json::Value;

use super::{Api, Call, Result, check_name_matches, custom_method_body, experiment_id};
use crate::error::{Code, Error};
use crate::mask;
use crate::methods::Rpc;
use crate::names::ExperimentName;
use crate::operation::{AwaitedEffect, Effect};
use crate::resources::fields::{EXPERIMENT_FIELDS, POLICY_FIELDS};
use crate::resources::input::{Input, experiment_change, policy_change};
use crate::store::{CommitPreconditions, PolicyStore, Preview, StoredExperiment, StoredPolicy};

/// The number of attempts of a change that conflicts with the changes of other clients.
const ATTEMPTS: usize = 5;

fn awaited_policy(effect: Effect, policy: &StoredPolicy) -> AwaitedEffect {
    let (uid, version) = (policy.meta.uid.clone(), policy.meta.version.clone());
    AwaitedEffect { effect, policy: policy.id.clone(), experiment: None, uid, version, start: None }
}

fn awaited_experiment(effect: Effect, experiment: &StoredExperiment) -> AwaitedEffect {
    let preview = experiment.preview.as_ref();
    AwaitedEffect {
        effect,
        policy: experiment.name.policy.clone(),
        experiment: Some(experiment.name.name.clone()),
        uid: experiment.meta.uid.clone(),
        version: experiment.meta.version.clone(),
        start: match effect {
            Effect::StartPreview => preview.map(|preview| preview.start_time.clone()),
            Effect::StopPreview => preview.and_then(|preview| preview.stop_time.clone()),
            Effect::Create | Effect::Update | Effect::Delete | Effect::Commit => None,
        },
    }
}

/// Checks that the etag of a request, if the request has one, is the stored etag (AIP-154).
fn check_etag_matches(given: Option<&str>, stored: &str, name: &str) -> Result<()> {
    match given {
        Some(given) if given != stored => Err(Error::etag_mismatch(name, given)),
        _ => Ok(()),
    }
}

/// Returns the id of a new experiment. The parameter has the name that AIP-133 derives from the type, and a short form.
fn new_experiment_id(call: &Call) -> Result<&str> {
    let given = |name: &str| call.query.get(name).and_then(Value::as_str);
    let (field, id) = match (given("policyExperimentId"), given("experimentId")) {
        (Some(id), Some(short)) if id != short => {
            let message = format!("is {id:?}, but experimentId, its short form, is {short:?}: set one of them");
            return Err(Error::invalid("policyExperimentId", message));
        }
        (Some(id), _) => ("policyExperimentId", id),
        (None, Some(id)) => ("experimentId", id),
        (None, None) => return Err(Error::invalid("policyExperimentId", "is missing from the query")),
    };
    experiment_id(field, id)?;
    Ok(id)
}

/// Returns true if the change conflicted with the change of another client, and can be tried again.
fn is_conflict(error: &Error) -> bool {
    error.code == Code::Aborted && error.reason() == "CONCURRENT_CHANGE"
}

impl<S: PolicyStore> Api<S> {
    pub(super) async fn create_policy(&self, call: &Call) -> Result<Value> {
        let id = call.required_parameter("policyId")?;
        let id: PolicyId = id
            .parse()
            .map_err(|error: proviso_core::policy_id::PolicyIdError| Error::invalid("policyId", error.to_string()))?;
        let input = Input::policy(call.object()?)?;
        let content = policy_change(input.mutable)?;
        let stored = self.store.create_policy(call.caller(), &id, content).await?;
        self.start_operation(call, awaited_policy(Effect::Create, &stored), None).await
    }

    pub(super) async fn update_policy(&self, call: &Call) -> Result<Value> {
        let id = call.policy()?;
        let name = format!("policies/{id}");
        let input = Input::policy(call.object()?)?;
        check_name_matches(input.name.as_deref(), &name)?;
        for _ in 0..ATTEMPTS {
            let stored = self.store.policy(call.caller(), &id).await?;
            check_etag_matches(input.etag.as_deref(), &stored.meta.etag, &name)?;
            let mut mutable = stored.mutable();
            mask::apply(&mut mutable, &input.mutable, call.parameter("updateMask"), POLICY_FIELDS)?;
            let content = policy_change(mutable)?;
            match self.store.update_policy(call.caller(), &id, &stored.meta.revision, content).await {
                Ok(stored) => return self.start_operation(call, awaited_policy(Effect::Update, &stored), None).await,
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&name))
    }

    pub(super) async fn delete_policy(&self, call: &Call) -> Result<Value> {
        let stored = self.store.delete_policy(call.caller(), &call.policy()?, call.parameter("etag")).await?;
        self.start_operation(call, awaited_policy(Effect::Delete, &stored), None).await
    }

    pub(super) async fn create_experiment(&self, call: &Call) -> Result<Value> {
        let policy = call.policy()?;
        let id = new_experiment_id(call)?;
        let input = Input::experiment(call.object()?, &format!("policies/{policy}"))?;
        let content = experiment_change(input.mutable, policy.name())?;
        let name = ExperimentName { policy: policy.clone(), name: id.to_owned() };
        let existing = self.store.experiments(call.caller(), Some(&policy)).await?;
        if existing.len() >= MAX_EXPERIMENTS && existing.iter().all(|experiment| experiment.name != name) {
            let message =
                format!("policies/{policy} already has {MAX_EXPERIMENTS} experiments, the maximum: delete one");
            let error = Error::new(Code::ResourceExhausted, "TOO_MANY_EXPERIMENTS", message);
            return Err(error.with("limit", &MAX_EXPERIMENTS.to_string()));
        }
        let stored = self.store.create_experiment(call.caller(), &name, content).await?;
        self.start_operation(call, awaited_experiment(Effect::Create, &stored), None).await
    }

    pub(super) async fn update_experiment(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        let input = Input::experiment(call.object()?, &format!("policies/{}", name.policy))?;
        check_name_matches(input.name.as_deref(), &name.to_string())?;
        for _ in 0..ATTEMPTS {
            let stored = self.store.experiment(call.caller(), &name).await?;
            check_etag_matches(input.etag.as_deref(), &stored.meta.etag, &name.to_string())?;
            let mut mutable = stored.mutable();
            mask::apply(&mut mutable, &input.mutable, call.parameter("updateMask"), EXPERIMENT_FIELDS)?;
            let content = experiment_change(mutable, name.policy.name())?.keep_ttl(&stored.ttl);
            match self.store.update_experiment(call.caller(), &name, &stored.meta.revision, content).await {
                Ok(stored) => {
                    return self.start_operation(call, awaited_experiment(Effect::Update, &stored), None).await;
                }
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&name.to_string()))
    }

    /// Deletes an experiment. The response of the operation is the deleted experiment (AIP-236).
    pub(super) async fn delete_experiment(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        let stored = self.store.delete_experiment(call.caller(), &name, call.parameter("etag")).await?;
        self.start_operation(call, awaited_experiment(Effect::Delete, &stored), Some(stored.to_json())).await
    }

    pub(super) async fn preview(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        custom_method_body(call, &name.to_string(), &[])?;
        let (change, effect) = match call.method.rpc {
            Rpc::StartPreview => (Preview::Start, Effect::StartPreview),
            _ => (Preview::Stop, Effect::StopPreview),
        };
        let stored = self.store.preview(call.caller(), &name, change).await?;
        self.start_operation(call, awaited_experiment(effect, &stored), None).await
    }

    pub(super) async fn commit(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        let message = custom_method_body(call, &name.to_string(), &["etag", "parentEtag"])?;
        let text = |field: &str| message.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        // The existence of the experiment is checked before the etag, so that a second commit is answered with NOT_FOUND
        // (AIP-236).
        self.store.experiment(call.caller(), &name).await?;
        let etag = text("etag").ok_or_else(|| {
            Error::invalid("etag", "is missing: set it to the etag of the version that you have reviewed")
        })?;
        let committing =
            CommitPreconditions { etag: etag.to_owned(), parent_etag: text("parentEtag").map(ToOwned::to_owned) };
        let policy = self.store.commit(call.caller(), &name, &committing).await?;
        let awaited = AwaitedEffect { experiment: Some(name.name), ..awaited_policy(Effect::Commit, &policy) };
        self.start_operation(call, awaited, None).await
    }
}
