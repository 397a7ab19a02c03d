//! What there should be: the candidate revision of an experiment, and the webhook that asks it. Pure.

use kube::ResourceExt as _;
use proviso_core::experiment::rollout::MadeFor;
use proviso_core::{PolicyId, PreviewEndpoint};
use proviso_crds::{Admission, PolicyRevision, PolicyRevisionSpec, RevisedExperiment, RevisedPolicy, RevisionRole};
use serde_json::{Value, json};

use super::object::ExperimentObject;
use crate::context::Error;
use crate::policies::build::webhook;
use crate::policies::object::{PolicyObject as _, id as id_of};
use proviso_crds::names::{EXPERIMENT_LABEL, SERVER_LABEL};

/// On a candidate: the start of the preview that it was made for. Another start is another candidate.
pub(super) const START: &str = "proviso.dev/preview-start";

/// `experiment` is its id.
pub(super) fn webhook_name(experiment: &PolicyId) -> String {
    format!("proviso-preview-{experiment}")
}

/// The revision of the generation that is previewed. `policy_generation` is the policy's now.
pub(super) fn candidate<K: ExperimentObject>(
    experiment: &K,
    made_for: &MadeFor,
    policy_generation: i64,
    namespace: &str,
) -> Result<PolicyRevision, Error> {
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let spec = experiment.spec();
    let mut revision = PolicyRevision::new(
        &format!("experiment.{}-{}", id_of(experiment)?, made_for.generation),
        PolicyRevisionSpec {
            policy_server: made_for.policy.server.clone(),
            policy_ref: RevisedPolicy {
                kind: K::Policy::KIND,
                namespace: experiment.namespace(),
                name: spec.policy_ref.name.clone(),
                uid: made_for.policy.uid.clone(),
                generation: policy_generation,
            },
            role: RevisionRole::Candidate,
            experiment_ref: Some(RevisedExperiment {
                name: experiment.name_any(),
                uid: uid.clone(),
                generation: made_for.generation,
            }),
            enabled: true,
            data: spec.policy.clone(),
        },
    );
    revision.metadata.namespace = Some(namespace.to_owned());
    revision.labels_mut().insert(SERVER_LABEL.to_owned(), made_for.policy.server.clone());
    revision.labels_mut().insert(EXPERIMENT_LABEL.to_owned(), uid);
    revision.annotations_mut().insert(START.to_owned(), made_for.start.clone());
    Ok(revision)
}

/// Whom the webhook of an experiment asks.
pub(crate) struct Asked<'a> {
    pub policy: &'a PolicyId,
    /// Its id.
    pub experiment: &'a PolicyId,
    pub uid: &'a str,
    pub generation: i64,
    /// The policy server that answers for the policy.
    pub server: &'a str,
}

/// The webhook configuration that asks an experiment. It covers the requests that a policy with this section would cover, but
/// nobody waits for it and it stops nobody.
pub(crate) fn preview_webhook(asked: &Asked<'_>, admission: &Admission, (namespace, bundle): (&str, &str)) -> Value {
    let path = PreviewEndpoint {
        policy: asked.policy.clone(),
        experiment: asked.experiment.name().to_owned(),
        generation: asked.generation.try_into().unwrap_or_default(),
    };
    let mut wanted = webhook(asked.policy, "", asked.generation, (asked.server, admission), (namespace, bundle));
    wanted["kind"] = "ValidatingWebhookConfiguration".into();
    wanted["metadata"] = json!({"name": webhook_name(asked.experiment), "labels": {EXPERIMENT_LABEL: asked.uid}});
    let only = &mut wanted["webhooks"][0];
    only["name"] = format!("{}.preview.proviso.dev", asked.experiment).into();
    if let Some(fields) = only.as_object_mut() {
        fields.remove("reinvocationPolicy");
    }
    only["failurePolicy"] = "Ignore".into();
    only["timeoutSeconds"] = 1.into();
    only["clientConfig"]["service"]["path"] = path.to_string().into();
    wanted
}
