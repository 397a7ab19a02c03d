//! Applies a decision to the cluster. The order of the writes makes it safe to stop after any of them.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::rollout::{self, Decision, Mark, Observed, WebhookKind};
use proviso_crds::names::{POLICY_LABEL, field_managers, finalizers};
use proviso_crds::{ConditionState, ConditionType, Conditions as _, EnforcementPoint, PolicyRevision};
use proviso_crds::{conditions::status_patch, reasons};
use serde_json::json;

use super::build;
use super::observe::{ObservedObjects, generation_in_name};
use super::words::{Effect, configuration_ready};
use crate::caller_tokens;
use crate::cascade;
use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::malformed::MaybeMalformed;
use crate::objects::{self, apply_params, ignore_not_found};
use crate::revisions::{self, Revision};
use crate::tenants::SystemRequests;
use crate::webhook::{self, Access};

/// Restores the webhook of the live generation, except during break-glass. Does not need the spec of the policy.
/// Returns the time until the next step; `None` if only events cause another step.
pub(super) async fn restore_webhook<O: Resource>(
    policy: &O,
    found: &ObservedObjects,
    observed: &Observed,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let Some(live) = observed.live().filter(|_| !observed.is_break_glass) else { return Ok(None) };
    let steps = rollout::webhook_steps(observed, Some(live));
    switch_webhook(policy, found, Some(live), &steps.delete, context).await?;
    Ok(steps.requeue_after)
}

pub(super) async fn decision<K: PolicyObject>(
    policy: &MaybeMalformed<K>,
    found: &ObservedObjects,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<(), Error> {
    let revisions = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
    if decision.create
        && let Ok(known) = &policy.0
    {
        let revision = build::revision(known, &found.revisions, &context.namespace)?;
        match context.caches.write_revision(revisions.create(&PostParams::default(), &revision)).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                delete_conflicting_revision(&revision, context).await?;
            }
            result => result?,
        }
    }
    for (generations, enabled) in [(&decision.enable, true), (&decision.disable, false)] {
        for revision in of_generations(found, generations) {
            let patch = Patch::Merge(json!({"spec": {"enabled": enabled}}));
            context
                .caches
                .write_revision(revisions.patch(&revision.name_any(), &PatchParams::default(), &patch))
                .await?;
        }
    }
    // The new live generation is on record before the webhook moves to it, so that an operator that restarts in between
    // continues the switch.
    for revision in &found.revisions {
        let generation = revision.policy_ref.generation;
        let mark = decision.marks_before.iter().find(|(marked, _)| *marked == generation).map(|(_, mark)| *mark);
        write_revision_status(revision, mark, observed, decision, &revisions, context).await?;
        for replica in found.removed_replicas(revision, context) {
            remove_replica_status(revision, replica, &revisions, context).await?;
        }
    }
    if !decision.is_break_glass {
        switch_webhook(policy, found, decision.live, &decision.delete_webhooks, context).await?;
    }
    // After the switch, however late it was: the time of this mark begins the grace period of the old generation.
    for (generation, mark) in &decision.marks_after {
        for revision in of_generations(found, &[*generation]) {
            write_revision_status(revision, Some(*mark), observed, decision, &revisions, context).await?;
        }
    }
    for name in revisions_to_delete(policy, found, decision) {
        ignore_not_found(revisions.delete(&name, &DeleteParams::default()).await)?;
    }
    // Deletes the experiments at once, even if revisions are left: an experiment needs its policy.
    let experiments_gone = observed.is_deleted && cascade::delete::<K::Experiment>(policy, context).await?;
    if decision.is_cleaned_up && experiments_gone {
        objects::remove_finalizer(&kinds::api::<K>(&context.client, policy), policy, finalizers::REVISIONS).await?;
    }
    Ok(())
}

/// Deletes a revision of this name that belongs to another policy, which was deleted without its finalizer. The
/// deletion triggers another reconcile, which then creates the revision.
async fn delete_conflicting_revision(revision: &PolicyRevision, context: &Context) -> Result<(), Error> {
    let revisions = Api::<MaybeMalformed<PolicyRevision>>::namespaced(context.client.clone(), &context.namespace);
    let Some(found) = revisions.get_opt(&revision.name_any()).await? else { return Ok(()) };
    context.reports.report(&found).await;
    let uid = match &found.0 {
        Ok(known) => Some(&known.spec.policy_ref.uid),
        Err(malformed) => malformed.metadata.labels.as_ref().and_then(|labels| labels.get(POLICY_LABEL)),
    };
    if uid != Some(&revision.spec.policy_ref.uid) {
        ignore_not_found(revisions.delete(&found.name_any(), &DeleteParams::default()).await)?;
    }
    Ok(())
}

fn of_generations<'a>(found: &'a ObservedObjects, generations: &[i64]) -> impl Iterator<Item = &'a Revision> {
    found.revisions.iter().filter(move |revision| generations.contains(&revision.policy_ref.generation))
}

/// Returns the names of the revisions to delete. If the policy is deleted, its malformed revisions are deleted too.
fn revisions_to_delete<O: Resource>(policy: &O, found: &ObservedObjects, decision: &Decision) -> Vec<String> {
    let known = of_generations(found, &decision.delete).map(Revision::name_any);
    let malformed = found.malformed.iter().filter(|revision| {
        decision.is_cleaned_up
            || generation_in_name(policy, revision).is_some_and(|generation| decision.delete.contains(&generation))
    });
    known.chain(malformed.filter_map(|revision| revision.metadata.name.clone())).collect()
}

/// Writes the conditions `Live` and `Ready` of a revision if they change. `mark` is the new mark; `None` if it stays.
async fn write_revision_status(
    revision: &Revision,
    mark: Option<Mark>,
    observed: &Observed,
    decision: &Decision,
    revisions: &Api<PolicyRevision>,
    context: &Context,
) -> Result<(), Error> {
    let (generation, now) = (revision.policy_ref.generation, Timestamp::now());
    let known = revision.status.conditions.as_slice();
    let live = match mark {
        // Each new mark begins now. The known condition may be older than the mark that was written before the switch.
        Some(mark) => Some(mark_state(mark, Effect::of_revision(revision)).into_condition(
            ConditionType::Live,
            &[],
            Some(generation),
            now,
        )),
        None => known.condition(ConditionType::Live).cloned(),
    };
    // Only the newest generation has the condition `Ready`.
    let ready = (generation == observed.generation).then(|| ready(revision, decision, now));
    let conditions: Vec<_> = live.into_iter().chain(ready).collect();
    if conditions.iter().all(|condition| known.contains(condition)) {
        return Ok(());
    }
    let patch = status_patch::<PolicyRevision>(&json!({"conditions": conditions}));
    Ok(context
        .caches
        .write_revision(revisions.patch_status(&revision.name_any(), &apply_params(), &Patch::Apply(patch)))
        .await?)
}

/// Returns the condition `Live` that stores a mark: see `mark` in `observe`.
fn mark_state(mark: Mark, effect: Effect) -> ConditionState {
    match mark {
        Mark::Live => ConditionState::yes(reasons::LIVE, effect.marked_live()),
        Mark::Called => ConditionState::unknown(
            reasons::STILL_CALLED,
            "a webhook configuration still calls this revision, but another one is live, or none",
        ),
        Mark::Retired => ConditionState::no(reasons::REPLACED, effect.marked_replaced()),
    }
}

/// Returns the condition `Ready` of the newest generation.
fn ready(revision: &Revision, decision: &Decision, now: Timestamp) -> Condition {
    let (known, generation) = (revision.status.conditions.as_slice(), revision.policy_ref.generation);
    if revision.is_configuration() {
        return configuration_ready(revision).into_condition(ConditionType::Ready, known, Some(generation), now);
    }
    // Without a Ready replica, the condition stays as it is: the status of the policy reports the missing replicas.
    if decision.total == 0
        && let Some(known) = known.condition(ConditionType::Ready)
    {
        return known.clone();
    }
    let state = if decision.total > 0 && decision.ready == decision.total {
        ConditionState::yes(reasons::LOADED, revisions::LOADED)
    } else {
        ConditionState::no(reasons::LOADING, revisions::NOT_LOADED)
    };
    state.into_condition(ConditionType::Ready, known, Some(generation), now)
}

/// Removes the status of a replica that no longer exists: an empty apply with the field manager of the replica.
async fn remove_replica_status(
    revision: &Revision,
    replica: &str,
    revisions: &Api<PolicyRevision>,
    context: &Context,
) -> Result<(), Error> {
    let mut empty_status = status_patch::<PolicyRevision>(&json!({}));
    empty_status["metadata"] = json!({"uid": revision.metadata.uid});
    let as_replica = PatchParams::apply(&field_managers::replica(replica)).force();
    let patch = Patch::Apply(empty_status);
    let removed =
        context.caches.write_revision(revisions.patch_status(&revision.name_any(), &as_replica, &patch)).await;
    Ok(ignore_not_found(removed)?)
}

/// Points the webhook at the live revision, and deletes the webhooks of these kinds. If the revision of the live
/// generation is missing, the webhook stays as it is.
async fn switch_webhook<O: Resource>(
    policy: &O,
    found: &ObservedObjects,
    live: Option<i64>,
    delete: &[WebhookKind],
    context: &Context,
) -> Result<(), Error> {
    let live = live.and_then(|live| of_generations(found, &[live]).next());
    let has_webhook = |revision: &&Revision| {
        !matches!(revision.point, Some(EnforcementPoint::Request | EnforcementPoint::Configuration))
    };
    if let Some(revision) = live.filter(has_webhook) {
        // This is the section of the live revision. The section of the newest generation may differ.
        let Some(admission) = &revision.admission else { return Err(Error::Incomplete("spec.admission")) };
        let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
        let (generation, bundle) = (revision.policy_ref.generation, context.ca_bundle().ok_or(Error::NoCa)?);
        let server = &revision.policy_server;
        let requests = (server.as_str(), admission, SystemRequests::of(server, context));
        let token = caller_tokens::current(server, context)?;
        let access = Access { namespace: &context.namespace, bundle: &bundle, token: Some(&token) };
        let desired = webhook::build(&found.id, &uid, generation, requests, access);
        // The new webhook before the deletion of the old one: a request may be evaluated twice, but is never missed.
        if admission.mutating {
            webhook::apply(&desired, found.mutating.as_deref(), &context.caches.mutating, context).await?;
        } else {
            webhook::apply(&desired, found.validating.as_deref(), &context.caches.validating, context).await?;
        }
    }
    for kind in delete {
        match (kind, &found.validating, &found.mutating) {
            (WebhookKind::Validating, Some(validating), _) => {
                let api = Api::<ValidatingWebhookConfiguration>::all(context.client.clone());
                objects::delete(&api, &**validating).await?;
            }
            (WebhookKind::Mutating, _, Some(mutating)) => {
                let api = Api::<MutatingWebhookConfiguration>::all(context.client.clone());
                objects::delete(&api, &**mutating).await?;
            }
            _ => {}
        }
    }
    Ok(())
}
