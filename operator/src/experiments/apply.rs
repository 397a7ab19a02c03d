//! Makes the cluster what was decided. The order is what makes it safe to stop anywhere.

use std::ops::ControlFlow::{self, Break, Continue};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType};
use kube::{Api, ResourceExt as _};
use proviso_core::experiment::rollout::{Change, Decision, MadeFor, Observed};
use proviso_crds::names::{COMMIT_INTENT, EXPERIMENT_LABEL, finalizers};
use proviso_crds::{PolicyRevision, PreviewMetadata};
use serde_json::json;

use super::build;
use super::observe::Seen;
use crate::context::{Context, Error};
use crate::guarded::Guarded;
use crate::kinds::{self, ExperimentObject};
use crate::objects::{self, ignore_gone};
use crate::webhook::{self, Asked};

/// Breaks off where the rest is to be decided anew.
pub(super) async fn decision<K: ExperimentObject>(
    experiment: &Guarded<K>,
    seen: &Seen<K>,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<ControlFlow<()>, Error> {
    let api = kinds::api::<K>(&context.client, experiment);
    if let Ok(known) = &experiment.0 {
        if decision.remove {
            // The policy says that it is this: who committed it has not come to the second of two writes.
            context.publish(known, event("Committed", "it is what its policy is now".to_owned())).await?;
            objects::delete(&api, experiment).await?;
            return Ok(Break(()));
        }
        if decision.forget_intent {
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
    switch(experiment, seen, observed, decision, context).await?;
    let revisions = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
    for name in &decision.delete {
        ignore_gone(revisions.delete(name, &DeleteParams::default()).await)?;
    }
    if decision.create
        && let (Ok(known), Some(policy), Some(session)) = (&experiment.0, &observed.policy, &observed.session)
    {
        let made_for = MadeFor { generation: session.generation, policy: policy.clone(), start: session.start.clone() };
        let generation = seen.policy.as_ref().and_then(|policy| kube::Resource::meta(&**policy).generation);
        let generation = generation.ok_or(Error::Incomplete("generation"))?;
        let candidate = build::candidate(known, &made_for, generation, &context.namespace)?;
        match context.caches.write_revision(revisions.create(&PostParams::default(), &candidate)).await {
            // Another experiment of this name had it, and is gone: so is what was made for it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                forget_namesake(&candidate, &revisions).await?;
            }
            result => result?,
        }
    }
    if decision.is_gone {
        objects::remove_finalizer(&api, experiment, finalizers::PREVIEW).await?;
    }
    Ok(Continue(()))
}

/// Deletes what has the name of this candidate and is of another experiment: one that was deleted past its finalizer. Its end
/// is an event, and then there is room.
async fn forget_namesake(candidate: &PolicyRevision, revisions: &Api<PolicyRevision>) -> Result<(), Error> {
    let Some(found) = revisions.get_metadata_opt(&candidate.name_any()).await? else { return Ok(()) };
    let label = EXPERIMENT_LABEL;
    if found.labels().get(label) != candidate.labels().get(label) {
        ignore_gone(revisions.delete(&found.name_any(), &DeleteParams::default()).await)?;
    }
    Ok(())
}

/// Starts, or suspends what an update has left behind. Of two writers one fails.
async fn change_state<K: ExperimentObject>(experiment: &K, change: Change, context: &Context) -> Result<(), Error> {
    let generation = experiment.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let before = experiment.status().and_then(|status| status.preview_metadata.clone());
    let now = Time(jiff::Timestamp::now());
    let (after, told) = match (change, before) {
        (Change::Start, before) => {
            let is_active = before.as_ref().is_some_and(|it| it.state == proviso_crds::PreviewState::Active);
            let before = before.map(|before| if is_active { before.stop(now.clone()) } else { before });
            let note = format!("generation {generation} starts by itself: spec.autoStart is true");
            (PreviewMetadata::start(before.as_ref(), generation, now), event("PreviewStarted", note))
        }
        (Change::Suspend, Some(before)) => {
            let note = format!("an update suspends it: generation {} was previewed", before.generation);
            (before.stop(now), event("PreviewSuspended", note))
        }
        (Change::Suspend, None) => return Ok(()),
    };
    let patch = json!({
        "metadata": {"resourceVersion": experiment.resource_version()}, "status": {"previewMetadata": after},
    });
    let api = kinds::api::<K>(&context.client, experiment);
    let (name, how, patch) = (experiment.name_any(), PatchParams::default(), Patch::Merge(patch));
    K::cache(&context.caches).write(api.patch_status(&name, &how, &patch)).await?;
    Ok(context.publish(experiment, told).await?)
}

fn event(reason: &str, note: String) -> Event {
    let action = "Preview".to_owned();
    Event { type_: EventType::Normal, reason: reason.to_owned(), note: Some(note), action, secondary: None }
}

/// Keeps the webhook of its own, or takes it away.
async fn switch<K: ExperimentObject>(
    experiment: &Guarded<K>,
    seen: &Seen<K>,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<(), Error> {
    let id = kinds::id(experiment)?;
    if !decision.webhook {
        if seen.webhook.is_some() {
            let webhooks = Api::<ValidatingWebhookConfiguration>::all(context.client.clone());
            ignore_gone(webhooks.delete(&webhook::preview_name(&id), &DeleteParams::default()).await)?;
        }
        return Ok(());
    }
    let (Ok(known), Some(policy)) = (&experiment.0, &observed.policy) else { return Ok(()) };
    let Some(admission) = &known.spec().policy.admission else {
        return Err(Error::Incomplete("spec.policy.admission"));
    };
    let bundle = context.bundle().ok_or(Error::NoAuthority)?;
    let asked = Asked {
        policy: &kinds::policy_id(experiment, &known.spec().policy_ref.name)?,
        experiment: &id,
        uid: &experiment.uid().ok_or(Error::Incomplete("uid"))?,
        generation: observed.generation,
        server: &policy.server,
    };
    let wanted = webhook::build_preview(&asked, admission, (&context.namespace, &bundle));
    webhook::apply(&wanted, seen.webhook.as_deref(), &context.caches.validating, context).await
}
