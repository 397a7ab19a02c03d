//! Applies a decision to the cluster. The order of the writes makes it safe to stop after any of them.

use std::ops::ControlFlow::{self, Break, Continue};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType};
use kube::{Api, ResourceExt as _};
use proviso_core::Reason;
use proviso_core::experiment::rollout::{CandidateSession, Change, Decision, Observed};
use proviso_crds::names::{COMMIT_INTENT, EXPERIMENT_LABEL, finalizers};
use proviso_crds::{PolicyRevision, PreviewMetadata, reasons};
use serde_json::json;

use super::build;
use super::observe::ObservedObjects;
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject};
use crate::malformed::MaybeMalformed;
use crate::objects::{self, ignore_not_found};
use crate::webhook::{self, PreviewTarget};

/// Applies a decision. Returns `Break` if the rest needs a new decision.
pub(super) async fn decision<K: ExperimentObject>(
    experiment: &MaybeMalformed<K>,
    found: &ObservedObjects<K>,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<ControlFlow<()>, Error> {
    let api = kinds::api::<K>(&context.client, experiment);
    if let Ok(known) = &experiment.0 {
        if decision.remove {
            // The policy names this experiment as committed, but the client stopped before the second of its two
            // writes.
            context
                .publish(known, event(&reasons::COMMITTED, "its spec is now the spec of its policy".to_owned()))
                .await?;
            objects::delete(&api, experiment).await?;
            return Ok(Break(()));
        }
        if decision.clear_commit_intent {
            let patch = json!({"metadata": {
                "annotations": {COMMIT_INTENT: null}, "resourceVersion": experiment.resource_version(),
            }});
            api.patch(&experiment.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
            return Ok(Break(()));
        }
        if let Some(change) = decision.change {
            change_state(known, change, context).await?;
            return Ok(Break(()));
        }
    }
    switch_webhook(experiment, found, observed, decision, context).await?;
    let revisions = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
    for name in &decision.delete {
        ignore_not_found(revisions.delete(name, &DeleteParams::default()).await)?;
    }
    if decision.create
        && let (Ok(known), Some(policy), Some(session)) = (&experiment.0, &observed.policy, &observed.session)
    {
        let session =
            CandidateSession { generation: session.generation, policy: policy.clone(), start: session.start.clone() };
        let generation = found.policy.as_ref().and_then(|policy| kube::Resource::meta(&**policy).generation);
        let generation = generation.ok_or(Error::Incomplete("generation"))?;
        let candidate = build::candidate(known, &session, generation, &context.namespace)?;
        match context.caches.write_revision(revisions.create(&PostParams::default(), &candidate)).await {
            // The revision belongs to a deleted experiment of the same name.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                delete_conflicting_candidate(&candidate, &revisions).await?;
            }
            result => result?,
        }
    }
    if decision.is_cleaned_up {
        objects::remove_finalizer(&api, experiment, finalizers::PREVIEW).await?;
    }
    Ok(Continue(()))
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

/// Starts the preview, or suspends it after an update. One of two concurrent writers fails.
async fn change_state<K: ExperimentObject>(experiment: &K, change: Change, context: &Context) -> Result<(), Error> {
    let generation = experiment.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let before = experiment.status().and_then(|status| status.preview_metadata.clone());
    let now = Time(jiff::Timestamp::now());
    let (after, notice) = match (change, before) {
        (Change::Start, before) => {
            let is_active = before.as_ref().is_some_and(|it| it.state == proviso_crds::PreviewState::Active);
            let before = before.map(|before| if is_active { before.stop(now.clone()) } else { before });
            let note = format!("generation {generation} starts automatically: spec.autoStart is true");
            (PreviewMetadata::start(before.as_ref(), generation, now), event(&reasons::PREVIEW_STARTED, note))
        }
        (Change::Suspend, Some(before)) => {
            let note = format!("suspended by an update: generation {} was previewed", before.generation);
            (before.stop(now), event(&reasons::PREVIEW_SUSPENDED, note))
        }
        (Change::Suspend, None) => return Ok(()),
    };
    let patch = json!({
        "metadata": {"resourceVersion": experiment.resource_version()}, "status": {"previewMetadata": after},
    });
    let api = kinds::api::<K>(&context.client, experiment);
    let (name, params, patch) = (experiment.name_any(), PatchParams::default(), Patch::Merge(patch));
    K::cache(&context.caches).write(api.patch_status(&name, &params, &patch)).await?;
    Ok(context.publish(experiment, notice).await?)
}

fn event(reason: &Reason, note: String) -> Event {
    let action = "Preview".to_owned();
    Event { type_: EventType::Normal, reason: reason.to_string(), note: Some(note), action, secondary: None }
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
    };
    let desired = webhook::build_preview(&target, admission, (&context.namespace, &bundle));
    webhook::apply(&desired, found.webhook.as_deref(), &context.caches.validating, context).await
}
