//! The operator's part of a commit (AIP-236). The REST API writes an intent to the status of the experiment, copies the
//! spec to the policy, and deletes the experiment. If the API stops in between, the operator completes or aborts the
//! commit. The annotation of the policy alone proves nothing: users who may change the policy may write it. The intent
//! is in the status of the experiment, which only Proviso may write.

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::{Resource as _, ResourceExt as _};
use proviso_core::experiment::rollout::COMMIT_INTENT_TIMEOUT;
use proviso_crds::reasons;
use serde_json::json;

use super::events::event;
use super::observe::ObservedObjects;
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject, PolicyObject};
use crate::malformed::MaybeMalformed;
use crate::objects::{RETRY, ignore_not_found};

/// The commit that is in progress, by the status of its experiment.
#[derive(Debug)]
pub(super) struct Intent<'a> {
    pub id: &'a str,
    /// The generation of the experiment that is committed.
    pub generation: i64,
}

impl<'a> Intent<'a> {
    /// Returns the commit of an experiment; `None` if none is in progress. A malformed experiment can have one too: it was
    /// readable when the commit began, or another version of Proviso can read it.
    pub fn of<K: ExperimentObject>(experiment: &'a MaybeMalformed<K>) -> Option<Self> {
        match &experiment.0 {
            Ok(known) => {
                let intent = known.status()?.commit.as_ref()?;
                Some(Self { id: &intent.id, generation: intent.generation })
            }
            Err(malformed) => {
                let intent = &malformed.status["commit"];
                Some(Self { id: intent["id"].as_str()?, generation: intent["generation"].as_i64().unwrap_or_default() })
            }
        }
    }
}

/// Deletes an experiment whose spec is copied to its policy. An experiment that has changed since it was read stays.
pub(super) async fn complete<K: ExperimentObject>(experiment: &K, context: &Context) -> Result<Action, Error> {
    let note = "its spec is now the spec of its policy".to_owned();
    context.publish_or_log(experiment, event(EventType::Normal, &reasons::COMMITTED, note)).await;
    let unchanged = Preconditions { uid: experiment.uid(), resource_version: experiment.resource_version() };
    let delete = DeleteParams { preconditions: Some(unchanged), ..DeleteParams::default() };
    let experiments = kinds::api::<K>(&context.client, experiment);
    ignore_not_found(experiments.delete(&experiment.name_any(), &delete).await)?;
    Ok(Action::await_change())
}

/// Aborts the commit of an experiment that has taken too long, or whose experiment is being deleted. Its caller may be
/// stalled, and not dead: first, the policy gets a new version and the id of the commit, so that a late write of the
/// caller fails. Then the intent is removed. An experiment that is being deleted may be malformed.
///
/// The write to the policy compares its version. If the caller was faster, the write fails, and the next reconcile
/// completes the commit.
pub(super) async fn abort<K: ExperimentObject>(
    experiment: &MaybeMalformed<K>,
    found: &ObservedObjects<K>,
    context: &Context,
) -> Result<Action, Error> {
    let Some(intent) = Intent::of(experiment) else { return Ok(Action::await_change()) };
    if let Some(policy) = found.policy.as_deref() {
        let aborted = policy.0.as_ref().ok().and_then(|known| known.status()?.aborted_commit.as_ref());
        match aborted {
            Some(id) if *id == intent.id => {}
            // The policy remembers one commit. That of another experiment must be over before it is forgotten.
            Some(id) if is_in_progress::<K>(id, context) => return Ok(Action::requeue(RETRY)),
            _ => mark_aborted(policy, intent.id, context).await?,
        }
    }
    let (generation, seconds) = (intent.generation, COMMIT_INTENT_TIMEOUT.as_secs());
    let note = if experiment.meta().deletion_timestamp.is_some() {
        format!("the commit of generation {generation} has not ended, and the experiment is being deleted")
    } else {
        format!("the commit of generation {generation} has not ended within {seconds} s")
    };
    context.publish_or_log(experiment, event(EventType::Warning, &reasons::COMMIT_ABORTED, note)).await;
    let patch = json!({
        "metadata": {"resourceVersion": experiment.resource_version()}, "status": {"commit": null},
    });
    let experiments = kinds::api::<K>(&context.client, experiment);
    let (name, params, patch) = (experiment.name_any(), PatchParams::default(), Patch::Merge(patch));
    K::cache(&context.caches).write(experiments.patch_status(&name, &params, &patch)).await?;
    Ok(Action::await_change())
}

/// Returns whether an experiment has the intent of the commit with this id. Experiments that are being deleted count,
/// also malformed ones: their intents are removed after the mark too. Another malformed experiment does not count: nothing
/// removes its intent.
fn is_in_progress<K: ExperimentObject>(id: &str, context: &Context) -> bool {
    let has_intent = |it: &MaybeMalformed<K>| Intent::of(it).is_some_and(|intent| intent.id == id);
    let is_reconciled = |it: &MaybeMalformed<K>| it.0.is_ok() || it.meta().deletion_timestamp.is_some();
    K::cache(&context.caches).reader().store().find(|it| has_intent(it) && is_reconciled(it)).is_some()
}

/// Writes the id of an aborted commit to the status of the policy, if the policy still has the version that was read. A
/// policy that does not exist any more needs no mark.
async fn mark_aborted<P: PolicyObject>(policy: &MaybeMalformed<P>, id: &str, context: &Context) -> Result<(), Error> {
    let patch = json!({
        "metadata": {"resourceVersion": policy.resource_version()}, "status": {"abortedCommit": id},
    });
    let policies = kinds::api::<P>(&context.client, policy);
    let (name, params, patch) = (policy.name_any(), PatchParams::default(), Patch::Merge(patch));
    let written = P::cache(&context.caches).write(policies.patch_status(&name, &params, &patch)).await;
    Ok(ignore_not_found(written)?)
}
