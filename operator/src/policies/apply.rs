//! Makes the cluster what was decided. The order is what makes it safe to stop anywhere.

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::rollout::{Decision, Observed};
use proviso_crds::conditions::{reasons, status_patch};
use proviso_crds::names::{POLICY_LABEL, field_managers, finalizers};
use proviso_crds::{ConditionState, ConditionType, Conditions as _, PolicyRevision};
use serde_json::json;

use super::build;
use super::observe::{Seen, named};
use crate::cascade;
use crate::context::{Context, Error};
use crate::guarded::Guarded;
use crate::kinds::{self, PolicyObject};
use crate::objects::{self, apply, ignore_gone};
use crate::revisions::{self, Revision};
use crate::webhook;

/// Goes on with what answers, whatever the policy may say now.
pub(super) async fn keep<O: Resource>(policy: &O, seen: &Seen, context: &Context) -> Result<(), Error> {
    match seen.live() {
        Some(live) if seen.break_glass().is_none() => switch(policy, seen, Some(live), context).await,
        _ => Ok(()),
    }
}

pub(super) async fn decision<K: PolicyObject>(
    policy: &Guarded<K>,
    seen: &Seen,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<(), Error> {
    let revisions = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
    if decision.create
        && let Ok(known) = &policy.0
    {
        let revision = build::revision(known, &seen.revisions, &context.namespace)?;
        match context.caches.write_revision(revisions.create(&PostParams::default(), &revision)).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                forget_namesake(&revision, context).await?;
            }
            result => result?,
        }
    }
    for (generations, enabled) in [(&decision.enable, true), (&decision.disable, false)] {
        for revision in of_generations(seen, generations) {
            let patch = Patch::Merge(json!({"spec": {"enabled": enabled}}));
            context
                .caches
                .write_revision(revisions.patch(&revision.name_any(), &PatchParams::default(), &patch))
                .await?;
        }
    }
    // Before the webhook moves: who starts again in between finds out how long the old one is to answer.
    for revision in &seen.revisions {
        revision_status(revision, observed, decision, &revisions, context).await?;
        for replica in seen.gone(revision, context) {
            forget_replica(revision, replica, &revisions, context).await?;
        }
    }
    if !decision.is_held {
        switch(policy, seen, decision.live, context).await?;
    }
    for name in to_delete(policy, seen, decision) {
        ignore_gone(revisions.delete(&name, &DeleteParams::default()).await)?;
    }
    // Whatever is left of it: an experiment of nothing says nothing.
    let are_gone = observed.is_deleted && cascade::delete::<K::Experiment>(policy, context).await?;
    if decision.is_gone && are_gone {
        objects::remove_finalizer(&kinds::api::<K>(&context.client, policy), policy, finalizers::REVISIONS).await?;
    }
    Ok(())
}

/// Deletes what has the name of this revision and is of another policy: one that was deleted past its finalizer. Its end
/// is an event, and then there is room.
async fn forget_namesake(revision: &PolicyRevision, context: &Context) -> Result<(), Error> {
    let revisions = Api::<Guarded<PolicyRevision>>::namespaced(context.client.clone(), &context.namespace);
    let Some(found) = revisions.get_opt(&revision.name_any()).await? else { return Ok(()) };
    context.reports.tell(&found).await;
    let uid = match &found.0 {
        Ok(known) => Some(&known.spec.policy_ref.uid),
        Err(malformed) => malformed.metadata.labels.as_ref().and_then(|labels| labels.get(POLICY_LABEL)),
    };
    if uid != Some(&revision.spec.policy_ref.uid) {
        ignore_gone(revisions.delete(&found.name_any(), &DeleteParams::default()).await)?;
    }
    Ok(())
}

fn of_generations<'a>(seen: &'a Seen, generations: &[i64]) -> impl Iterator<Item = &'a Revision> {
    seen.revisions.iter().filter(move |revision| generations.contains(&revision.policy_ref.generation))
}

/// The names of the revisions that go. With a policy go also those of its own that nobody can read.
fn to_delete<O: Resource>(policy: &O, seen: &Seen, decision: &Decision) -> Vec<String> {
    let known = of_generations(seen, &decision.delete).map(Revision::name_any);
    let malformed = seen.malformed.iter().filter(|revision| {
        decision.is_gone || named(policy, revision).is_some_and(|generation| decision.delete.contains(&generation))
    });
    known.chain(malformed.filter_map(|revision| revision.metadata.name.clone())).collect()
}

/// Says which revision is live, and since when the others are not.
async fn revision_status(
    revision: &Revision,
    observed: &Observed,
    decision: &Decision,
    revisions: &Api<PolicyRevision>,
    context: &Context,
) -> Result<(), Error> {
    let generation = revision.policy_ref.generation;
    let known = revision.status.conditions.as_slice();
    let was_live = known.condition(ConditionType::Live).is_some();
    let mut said = Vec::new();
    if decision.live == Some(generation) {
        let state = ConditionState::yes(reasons::LIVE, "requests are answered by this revision");
        said.push((ConditionType::Live, state));
    } else if was_live || observed.live == Some(generation) {
        let state = ConditionState::no(reasons::REPLACED, "requests are answered by another revision, or by none");
        said.push((ConditionType::Live, state));
    }
    // While there is no Ready replica, the condition stays as it is: `kubectl get policy` says so.
    if generation == observed.generation && (decision.total > 0 || known.condition(ConditionType::Ready).is_none()) {
        let state = if decision.total > 0 && decision.ready == decision.total {
            ConditionState::yes(reasons::LOADED, revisions::LOADED)
        } else {
            ConditionState::no(reasons::LOADING, revisions::NOT_LOADED)
        };
        said.push((ConditionType::Ready, state));
    }
    let now = Timestamp::now();
    let conditions = said.into_iter().map(|(type_, state)| state.into_condition(type_, known, Some(generation), now));
    let conditions: Vec<_> = conditions.collect();
    if conditions.is_empty() || conditions.iter().all(|condition| known.contains(condition)) {
        return Ok(());
    }
    let status = status_patch::<PolicyRevision>(&json!({"conditions": conditions}));
    Ok(context
        .caches
        .write_revision(revisions.patch_status(&revision.name_any(), &apply(), &Patch::Apply(status)))
        .await?)
}

/// Takes away what a replica said that is no more: what it would apply if it had nothing to say.
async fn forget_replica(
    revision: &Revision,
    replica: &str,
    revisions: &Api<PolicyRevision>,
    context: &Context,
) -> Result<(), Error> {
    let mut nothing = status_patch::<PolicyRevision>(&json!({}));
    nothing["metadata"] = json!({"uid": revision.metadata.uid});
    let as_replica = PatchParams::apply(&field_managers::replica(replica)).force();
    let patch = Patch::Apply(nothing);
    let forgotten =
        context.caches.write_revision(revisions.patch_status(&revision.name_any(), &as_replica, &patch)).await;
    Ok(ignore_gone(forgotten)?)
}

/// Points the webhook at the live revision, or takes it away.
async fn switch<O: Resource>(policy: &O, seen: &Seen, live: Option<i64>, context: &Context) -> Result<(), Error> {
    let (id, uid) = (kinds::id(policy)?, policy.uid().ok_or(Error::Incomplete("uid"))?);
    let Some(revision) = live.and_then(|live| of_generations(seen, &[live]).next()) else {
        // A live generation without its revision fails closed until there is another.
        return if live.is_none() { remove(seen, true, true, &id, context).await } else { Ok(()) };
    };
    // What it says is the revision's, not the newest policy's.
    let Some(admission) = &revision.admission else { return Err(Error::Incomplete("spec.admission")) };
    let (generation, bundle) = (revision.policy_ref.generation, context.bundle().ok_or(Error::NoAuthority)?);
    let server = &revision.policy_server;
    let wanted = webhook::build(&id, &uid, generation, (server, admission), (&context.namespace, &bundle));
    // First the new one: a request may be asked about twice, never not at all.
    if admission.mutating {
        webhook::apply(&wanted, seen.mutating.as_deref(), &context.caches.mutating, context).await?;
    } else {
        webhook::apply(&wanted, seen.validating.as_deref(), &context.caches.validating, context).await?;
    }
    remove(seen, admission.mutating, !admission.mutating, &id, context).await
}

async fn remove(
    seen: &Seen,
    validating: bool,
    mutating: bool,
    id: &proviso_core::PolicyId,
    context: &Context,
) -> Result<(), Error> {
    let (name, now) = (webhook::name(id), DeleteParams::default());
    if validating && seen.validating.is_some() {
        let api = Api::<ValidatingWebhookConfiguration>::all(context.client.clone());
        ignore_gone(api.delete(&name, &now).await)?;
    }
    if mutating && seen.mutating.is_some() {
        let api = Api::<MutatingWebhookConfiguration>::all(context.client.clone());
        ignore_gone(api.delete(&name, &now).await)?;
    }
    Ok(())
}
