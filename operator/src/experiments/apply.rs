//! Applies a decision to the cluster. The order of the writes makes it safe to stop after any of them.

use std::ops::ControlFlow::{self, Break, Continue};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use proviso_core::experiment::rollout::{CommitStep, Decision, DesiredCandidate, Observed};
use proviso_crds::PolicyRevision;
use proviso_crds::names::{EXPERIMENT_LABEL, finalizers};
use serde_json::json;

use super::observe::ObservedObjects;
use super::{build, commit, session};
use crate::caller_tokens;
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject};
use crate::malformed::MaybeMalformed;
use crate::objects::{self, ignore_not_found};
use crate::tenants::SystemRequests;
use crate::webhook::{self, Access, PreviewTarget};

/// Applies a decision, except [`after_status`]. Returns `Break` if the rest needs a new decision.
pub(super) async fn decision<K: ExperimentObject>(
    experiment: &MaybeMalformed<K>,
    found: &ObservedObjects<K>,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<ControlFlow<Action>, Error> {
    match (&experiment.0, decision.commit, decision.change) {
        (_, Some(CommitStep::Abort), _) => return Ok(Break(commit::abort(experiment, found, context).await?)),
        (Ok(known), Some(CommitStep::Complete), _) => return Ok(Break(commit::complete(known, context).await?)),
        (Ok(known), None, Some(change)) => {
            return Ok(Break(session::change(known, change, found, decision, context).await?));
        }
        // Only the end of its commit is written for a malformed experiment, which is being deleted.
        (Ok(_), None, None) | (Err(_), Some(CommitStep::Complete) | None, _) => {}
    }
    switch_webhook(experiment, found, observed, decision, context).await?;
    let revisions = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
    let disabled = Patch::Merge(json!({"spec": {"enabled": false}}));
    for name in &decision.disable {
        context.caches.write_revision(revisions.patch(name, &PatchParams::default(), &disabled)).await?;
    }
    delete(&decision.delete, &revisions).await?;
    if decision.is_cleaned_up {
        let api = kinds::api::<K>(&context.client, experiment);
        objects::remove_finalizer(&api, experiment, finalizers::PREVIEW).await?;
    }
    Ok(Continue(()))
}

/// Applies the part of a decision that must follow its status. Before the candidate exists, the condition `Previewing`
/// must be `Preparing`: a client that stops the preview at once would take the condition of an earlier stop for the end of
/// its own stop. The candidates whose final counts are in the status now are deleted.
pub(super) async fn after_status<K: ExperimentObject>(
    experiment: &K,
    found: &ObservedObjects<K>,
    decision: &Decision,
    context: &Context,
) -> Result<(), Error> {
    let revisions = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
    if let Some(desired) = &decision.create {
        create_candidate(experiment, desired, found, &revisions, context).await?;
    }
    Ok(delete(&decision.delete_stopped, &revisions).await?)
}

async fn delete(candidates: &[String], revisions: &Api<PolicyRevision>) -> kube::Result<()> {
    for name in candidates {
        ignore_not_found(revisions.delete(name, &DeleteParams::default()).await)?;
    }
    Ok(())
}

async fn create_candidate<K: ExperimentObject>(
    experiment: &K,
    desired: &DesiredCandidate,
    found: &ObservedObjects<K>,
    revisions: &Api<PolicyRevision>,
    context: &Context,
) -> Result<(), Error> {
    let generation = found.policy.as_ref().and_then(|policy| kube::Resource::meta(&**policy).generation);
    let generation = generation.ok_or(Error::Incomplete("generation"))?;
    let candidate = build::candidate(experiment, desired, generation, &context.namespace)?;
    match context.caches.write_revision(revisions.create(&PostParams::default(), &candidate)).await {
        // The revision belongs to a deleted experiment of the same name.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            delete_conflicting_candidate(&candidate, revisions).await
        }
        result => Ok(result?),
    }
}

/// Deletes a revision of this name that belongs to another experiment, which was deleted without its finalizer. The
/// deletion triggers another reconcile, which then creates the candidate.
async fn delete_conflicting_candidate(
    candidate: &PolicyRevision,
    revisions: &Api<PolicyRevision>,
) -> Result<(), Error> {
    let Some(found) = revisions.get_metadata_opt(&candidate.name_any()).await? else { return Ok(()) };
    let label = EXPERIMENT_LABEL;
    if found.labels().get(label) != candidate.labels().get(label) {
        ignore_not_found(revisions.delete(&found.name_any(), &DeleteParams::default()).await)?;
    }
    Ok(())
}

/// Applies the webhook of the experiment, or deletes it.
async fn switch_webhook<K: ExperimentObject>(
    experiment: &MaybeMalformed<K>,
    found: &ObservedObjects<K>,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<(), Error> {
    let id = kinds::id(experiment)?;
    if !decision.webhook {
        if found.webhook.is_some() {
            let webhooks = Api::<ValidatingWebhookConfiguration>::all(context.client.clone());
            ignore_not_found(webhooks.delete(&webhook::preview_name(&id), &DeleteParams::default()).await)?;
        }
        return Ok(());
    }
    let (Ok(known), Some(policy)) = (&experiment.0, &observed.policy) else { return Ok(()) };
    let Some(admission) = &known.spec().policy.admission else {
        return Err(Error::Incomplete("spec.policy.admission"));
    };
    let bundle = context.ca_bundle().ok_or(Error::NoCa)?;
    let target = PreviewTarget {
        policy: &kinds::policy_id(experiment, &known.spec().policy_ref.name)?,
        experiment: &id,
        uid: &experiment.uid().ok_or(Error::Incomplete("uid"))?,
        generation: observed.generation,
        server: &policy.server,
        system: SystemRequests::of(&policy.server, context),
    };
    let token = caller_tokens::current(&policy.server, context)?;
    let access = Access { namespace: &context.namespace, bundle: &bundle, token: Some(&token) };
    let desired = webhook::build_preview(&target, admission, access);
    webhook::apply(&desired, found.webhook.as_deref(), &context.caches.validating, context).await
}
