//! Starts and suspensions of previews by the operator.

use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use proviso_core::experiment::rollout::{Acceptance, Change, Decision, Suspension};
use proviso_crds::{
    ConditionState, ConditionStatus, PreviewMetadata, PreviewState, StopCause, reasons, time_to_live_or_longest,
};
use serde_json::json;

use super::conditions;
use super::events::event;
use super::observe::{ObservedObjects, expire_time};
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject};
use crate::objects::RETRY;

/// Writes a change of the preview state. One of two concurrent writers fails.
pub(super) async fn change<K: ExperimentObject>(
    experiment: &K,
    change: Change,
    found: &ObservedObjects<K>,
    decision: &Decision,
    context: &Context,
) -> Result<Action, Error> {
    let generation = experiment.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let before = experiment.status().and_then(|status| status.preview_metadata.clone());
    let now = PreviewMetadata::time_after(before.as_ref(), jiff::Timestamp::now());
    let (after, notice) = match (change, before) {
        (Change::Start, before) => {
            let is_active = before.as_ref().is_some_and(|it| it.state == PreviewState::Active);
            let before = before.map(|before| if is_active { before.stop(now.clone(), None) } else { before });
            let ttl = time_to_live_or_longest(&experiment.spec().ttl);
            let note = format!("generation {generation} starts automatically: spec.autoStart is true");
            let started = PreviewMetadata::start(before.as_ref(), generation, now, ttl);
            (started, event(EventType::Normal, &reasons::PREVIEW_STARTED, note))
        }
        (Change::Suspend(suspension), Some(before)) => {
            let is_missing = suspension == Suspension::Failed && decision.acceptance == Acceptance::PolicyNotFound;
            if is_missing && policy_exists(experiment, context).await? {
                // The cache is late.
                return Ok(Action::requeue(RETRY));
            }
            let cause = stop_cause(experiment, &before, suspension, found, decision)?;
            let notice = match suspension {
                Suspension::Failed => {
                    let note = format!("generation {generation} is not previewed: {}", cause.message);
                    event(EventType::Warning, &cause.reason.clone().into(), note)
                }
                Suspension::Updated | Suspension::Expired => {
                    event(EventType::Normal, &reasons::PREVIEW_SUSPENDED, cause.message.clone())
                }
            };
            // The cause counts only with the end of this start, which an older version of the API has not written.
            let expire_time = match suspension {
                Suspension::Updated => before.expire_time.clone(),
                Suspension::Failed | Suspension::Expired => expire_time(experiment.spec(), &before.start_time),
            };
            (PreviewMetadata { expire_time, ..before }.stop(now, Some(cause)), notice)
        }
        (Change::Suspend(_), None) => return Ok(Action::await_change()),
    };
    let patch = json!({
        "metadata": {"resourceVersion": experiment.resource_version()}, "status": {"previewMetadata": after.to_merge_patch()},
    });
    let api = kinds::api::<K>(&context.client, experiment);
    let (name, params, patch) = (experiment.name_any(), PatchParams::default(), Patch::Merge(patch));
    K::cache(&context.caches).write(api.patch_status(&name, &params, &patch)).await?;
    context.publish_or_log(experiment, notice).await;
    Ok(Action::await_change())
}

/// Returns whether the API server has the policy of the experiment, and the policy is not being deleted.
async fn policy_exists<K: ExperimentObject>(experiment: &K, context: &Context) -> Result<bool, Error> {
    let policies = kinds::api::<K::Policy>(&context.client, experiment);
    let policy = policies.get_metadata_opt(&experiment.spec().policy_ref.name).await?;
    Ok(policy.is_some_and(|policy| policy.metadata.deletion_timestamp.is_none()))
}

fn stop_cause<K: ExperimentObject>(
    experiment: &K,
    preview: &PreviewMetadata,
    suspension: Suspension,
    found: &ObservedObjects<K>,
    decision: &Decision,
) -> Result<StopCause, Error> {
    let (reason, message) = match suspension {
        Suspension::Updated => {
            (reasons::UPDATED, format!("suspended by an update: generation {} was previewed", preview.generation))
        }
        Suspension::Expired => {
            let ttl = &experiment.spec().ttl;
            (reasons::EXPIRED, format!("suspended after its time to live: spec.ttl is {ttl}"))
        }
        Suspension::Failed => {
            let [accepted, initialized, previewing] = conditions::states(experiment, found, decision)?;
            let failed = [accepted, initialized].into_iter().find(|state| state.status == ConditionStatus::False);
            let ConditionState { reason, message, .. } = failed.unwrap_or(previewing);
            (reason, message)
        }
    };
    Ok(StopCause::new(reason.as_str(), &message))
}
