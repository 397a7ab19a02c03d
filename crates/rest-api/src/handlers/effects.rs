//! The methods that change something. Each answers an operation (AIP-151).

use proviso_core::PolicyId;
use proviso_core::experiment::MAX_EXPERIMENTS;
use serde_json::Value;

use super::{Api, Call, Result, awaited_policy, custom, experiment_id, same_name};
use crate::error::{Code, Error};
use crate::mask;
use crate::methods::Rpc;
use crate::names::ExperimentName;
use crate::operation::{Awaited, Effect, Progress};
use crate::resources::{EXPERIMENT_FIELDS, Input, POLICY_FIELDS, change};
use crate::store::{Committing, PolicyStore, Preview, StoredExperiment};

/// How often a change is tried that others came before.
const ATTEMPTS: usize = 5;

fn awaited(effect: Effect, experiment: &StoredExperiment) -> Awaited {
    Awaited {
        effect,
        policy: experiment.name.policy.clone(),
        experiment: Some(experiment.name.name.clone()),
        uid: experiment.meta.uid.clone(),
        version: experiment.meta.version.clone(),
    }
}

/// An etag that was given must be the resource's (AIP-154).
fn same_etag(given: Option<&str>, stored: &str, name: &str) -> Result<()> {
    match given {
        Some(given) if given != stored => Err(Error::stale(name, given)),
        _ => Ok(()),
    }
}

/// Whether trying again may help.
fn is_conflict(error: &Error) -> bool {
    error.code == Code::Aborted && error.reason() == "CONCURRENT_CHANGE"
}

impl<S: PolicyStore> Api<S> {
    /// The operation of an effect that has begun, also where the caller may not see how it goes on.
    async fn begun(&self, call: &Call, awaited: Awaited) -> Result<Value> {
        Ok(match self.operation(call, &awaited).await {
            Ok((operation, _)) => operation,
            Err(error) => awaited.operation(&Progress::Running(error.to_string()), None),
        })
    }

    pub(super) async fn create_policy(&self, call: &Call) -> Result<Value> {
        let id = call.demanded("policyId")?;
        let id: PolicyId = id
            .parse()
            .map_err(|error: proviso_core::policy_id::PolicyIdError| Error::invalid("policyId", error.to_string()))?;
        let input = Input::policy(call.object()?)?;
        let stored = self.store.create_policy(call.caller(), &id, change(input.mutable, POLICY_FIELDS)?).await?;
        self.begun(call, awaited_policy(Effect::Create, &stored)).await
    }

    pub(super) async fn update_policy(&self, call: &Call) -> Result<Value> {
        let id = call.policy()?;
        let name = format!("policies/{id}");
        let input = Input::policy(call.object()?)?;
        same_name(input.name.as_deref(), &name)?;
        for _ in 0..ATTEMPTS {
            let stored = self.store.policy(call.caller(), &id).await?;
            same_etag(input.etag.as_deref(), &stored.meta.etag, &name)?;
            let mut mutable = stored.mutable();
            mask::apply(&mut mutable, &input.mutable, call.parameter("updateMask"), POLICY_FIELDS)?;
            let content = change(mutable, POLICY_FIELDS)?;
            match self.store.update_policy(call.caller(), &id, &stored.meta.revision, content).await {
                Ok(stored) => return self.begun(call, awaited_policy(Effect::Update, &stored)).await,
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::busy(&name))
    }

    pub(super) async fn delete_policy(&self, call: &Call) -> Result<Value> {
        let stored = self.store.delete_policy(call.caller(), &call.policy()?, call.parameter("etag")).await?;
        self.begun(call, awaited_policy(Effect::Delete, &stored)).await
    }

    pub(super) async fn create_experiment(&self, call: &Call) -> Result<Value> {
        let policy = call.policy()?;
        let id = call.demanded("experimentId")?;
        experiment_id("experimentId", id)?;
        let input = Input::experiment(call.object()?, &format!("policies/{policy}"))?;
        let content = change(input.mutable, EXPERIMENT_FIELDS)?;
        let name = ExperimentName { policy: policy.clone(), name: id.to_owned() };
        let there = self.store.experiments(call.caller(), Some(&policy)).await?;
        if there.len() >= MAX_EXPERIMENTS && there.iter().all(|experiment| experiment.name != name) {
            let message = format!("policies/{policy} has {MAX_EXPERIMENTS} experiments already: delete one");
            let error = Error::new(Code::ResourceExhausted, "TOO_MANY_EXPERIMENTS", message);
            return Err(error.with("limit", &MAX_EXPERIMENTS.to_string()));
        }
        let stored = self.store.create_experiment(call.caller(), &name, content).await?;
        self.begun(call, awaited(Effect::Create, &stored)).await
    }

    pub(super) async fn update_experiment(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        let input = Input::experiment(call.object()?, &format!("policies/{}", name.policy))?;
        same_name(input.name.as_deref(), &name.to_string())?;
        for _ in 0..ATTEMPTS {
            let stored = self.store.experiment(call.caller(), &name).await?;
            same_etag(input.etag.as_deref(), &stored.meta.etag, &name.to_string())?;
            let mut mutable = stored.mutable();
            mask::apply(&mut mutable, &input.mutable, call.parameter("updateMask"), EXPERIMENT_FIELDS)?;
            let content = change(mutable, EXPERIMENT_FIELDS)?;
            match self.store.update_experiment(call.caller(), &name, &stored.meta.revision, content).await {
                Ok(stored) => return self.begun(call, awaited(Effect::Update, &stored)).await,
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::busy(&name.to_string()))
    }

    /// Its operation answers the experiment as it was (AIP-236).
    pub(super) async fn delete_experiment(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        let stored = self.store.delete_experiment(call.caller(), &name, call.parameter("etag")).await?;
        let awaited = awaited(Effect::Delete, &stored);
        let progress = self.store.progress(call.caller(), &awaited).await;
        let progress = progress.unwrap_or_else(|error| Progress::Running(error.to_string()));
        Ok(awaited.operation(&progress, Some(stored.to_json())))
    }

    pub(super) async fn preview(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        custom(call, &name.to_string(), &[])?;
        let (change, effect) = match call.method.rpc {
            Rpc::StartPreview => (Preview::Start, Effect::StartPreview),
            _ => (Preview::Stop, Effect::StopPreview),
        };
        let stored = self.store.preview(call.caller(), &name, change).await?;
        self.begun(call, awaited(effect, &stored)).await
    }

    pub(super) async fn commit(&self, call: &Call) -> Result<Value> {
        let name = call.experiment()?;
        let message = custom(call, &name.to_string(), &["etag", "parentEtag"])?;
        let text = |field: &str| message.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        // Whether it is there at all comes first: a second call is told that it is not (AIP-236).
        self.store.experiment(call.caller(), &name).await?;
        let etag = text("etag").ok_or_else(|| {
            Error::invalid("etag", "is missing: without it another version might be committed than you mean")
        })?;
        let committing = Committing { etag: etag.to_owned(), parent_etag: text("parentEtag").map(ToOwned::to_owned) };
        let policy = self.store.commit(call.caller(), &name, &committing).await?;
        let awaited = Awaited { experiment: Some(name.name), ..awaited_policy(Effect::Commit, &policy) };
        let progress = self.store.progress(call.caller(), &awaited).await.unwrap_or_else(|error| {
            // It is committed, whatever can be seen of it now.
            Progress::Running(error.to_string())
        });
        Ok(awaited.operation(&progress, None))
    }
}
