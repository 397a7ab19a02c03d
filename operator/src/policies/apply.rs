//! Applies a decision to the cluster. The order of the writes makes it safe to stop after any of them.

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::rollout::{Decision, Observed};
use proviso_crds::names::{POLICY_LABEL, field_managers, finalizers};
use proviso_crds::{ConditionState, ConditionType, Conditions as _, PolicyRevision};
use proviso_crds::{conditions::status_patch, reasons};
use serde_json::json;

use super::build;
use super::observe::{ObservedObjects, generation_in_name};
use crate::cascade;
use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::malformed::MaybeMalformed;
use crate::objects::{self, apply_params, ignore_not_found};
use crate::revisions::{self, Revision};
use crate::webhook;

/// Restores the webhook of the live generation, except during break-glass. Does not need the spec of the policy.
pub(super) async fn restore_webhook<O: Resource>(
    policy: &O,
    found: &ObservedObjects,
    context: &Context,
) -> Result<(), Error> {
    match found.live() {
        Some(live) if found.break_glass().is_none() => switch_webhook(policy, found, Some(live), context).await,
        _ => Ok(()),
    }
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
    // Before the webhook moves: an operator that restarts in between learns from the status how long the old
    // generation still has to answer.
    for revision in &found.revisions {
        write_revision_status(revision, observed, decision, &revisions, context).await?;
        for replica in found.removed_replicas(revision, context) {
            remove_replica_status(revision, replica, &revisions, context).await?;
        }
    }
    if !decision.is_break_glass {
        switch_webhook(policy, found, decision.live, context).await?;
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

/// Writes the conditions `Live` and `Ready` of a revision.
async fn write_revision_status(
    revision: &Revision,
    observed: &Observed,
    decision: &Decision,
    revisions: &Api<PolicyRevision>,
    context: &Context,
) -> Result<(), Error> {
    let generation = revision.policy_ref.generation;
    let known = revision.status.conditions.as_slice();
    let was_live = known.condition(ConditionType::Live).is_some();
    let mut states = Vec::new();
    if decision.live == Some(generation) {
        let state = ConditionState::yes(reasons::LIVE, "requests are answered by this revision");
        states.push((ConditionType::Live, state));
    } else if was_live || observed.live == Some(generation) {
        let state = ConditionState::no(reasons::REPLACED, "requests are answered by another revision, or by none");
        states.push((ConditionType::Live, state));
    }
    // Without a Ready replica, the condition stays as it is: the status of the policy reports the missing replicas.
    if generation == observed.generation && (decision.total > 0 || known.condition(ConditionType::Ready).is_none()) {
        let state = if decision.total > 0 && decision.ready == decision.total {
            ConditionState::yes(reasons::LOADED, revisions::LOADED)
        } else {
            ConditionState::no(reasons::LOADING, revisions::NOT_LOADED)
        };
        states.push((ConditionType::Ready, state));
    }
    let now = Timestamp::now();
    let conditions = states.into_iter().map(|(type_, state)| state.into_condition(type_, known, Some(generation), now));
    let conditions: Vec<_> = conditions.collect();
    if conditions.is_empty() || conditions.iter().all(|condition| known.contains(condition)) {
        return Ok(());
    }
    let patch = status_patch::<PolicyRevision>(&json!({"conditions": conditions}));
    Ok(context
        .caches
        .write_revision(revisions.patch_status(&revision.name_any(), &apply_params(), &Patch::Apply(patch)))
        .await?)
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

/// Points the webhook at the live revision, or deletes it if no generation is live.
async fn switch_webhook<O: Resource>(
    policy: &O,
    found: &ObservedObjects,
    live: Option<i64>,
    context: &Context,
) -> Result<(), Error> {
    let (id, uid) = (kinds::id(policy)?, policy.uid().ok_or(Error::Incomplete("uid"))?);
    let Some(revision) = live.and_then(|live| of_generations(found, &[live]).next()) else {
        // If the revision of the live generation is missing, the webhook stays, so that `failurePolicy` decides about
        // requests until another generation is live. Without the webhook, all requests would pass.
        return if live.is_none() { delete_webhooks(found, true, true, &id, context).await } else { Ok(()) };
    };
    // This is the section of the live revision. The section of the newest generation may differ.
    let Some(admission) = &revision.admission else { return Err(Error::Incomplete("spec.admission")) };
    let (generation, bundle) = (revision.policy_ref.generation, context.ca_bundle().ok_or(Error::NoCa)?);
    let server = &revision.policy_server;
    let desired = webhook::build(&id, &uid, generation, (server, admission), (&context.namespace, &bundle));
    // The new webhook before the deletion of the old one: a request may be evaluated twice, but is never missed.
    if admission.mutating {
        webhook::apply(&desired, found.mutating.as_deref(), &context.caches.mutating, context).await?;
    } else {
        webhook::apply(&desired, found.validating.as_deref(), &context.caches.validating, context).await?;
    }
    delete_webhooks(found, admission.mutating, !admission.mutating, &id, context).await
}

async fn delete_webhooks(
    found: &ObservedObjects,
    validating: bool,
    mutating: bool,
    id: &proviso_core::PolicyId,
    context: &Context,
) -> Result<(), Error> {
    let (name, params) = (webhook::name(id), DeleteParams::default());
    if validating && found.validating.is_some() {
        let api = Api::<ValidatingWebhookConfiguration>::all(context.client.clone());
        ignore_not_found(api.delete(&name, &params).await)?;
    }
    if mutating && found.mutating.is_some() {
        let api = Api::<MutatingWebhookConfiguration>::all(context.client.clone());
        ignore_not_found(api.delete(&name, &params).await)?;
    }
    Ok(())
}
