//! Builds the candidate revision of an experiment. Pure.

use kube::ResourceExt as _;
use proviso_core::experiment::rollout::DesiredCandidate;
use proviso_crds::names::{CONFIGURATION, EXPERIMENT_LABEL, POINT_LABEL, PREVIEW_START, SERVER_LABEL};
use proviso_crds::{
    PolicyRevision, PolicyRevisionSpec, PreviewSettings, RevisedExperiment, RevisedPolicy, RevisionRole,
};

use crate::context::Error;
use crate::kinds::{self, ExperimentObject, PolicyObject as _};

/// Builds the revision of the generation that is previewed or committed. `policy_generation` is the current generation
/// of the policy.
pub(super) fn candidate<K: ExperimentObject>(
    experiment: &K,
    desired: &DesiredCandidate,
    policy_generation: i64,
    namespace: &str,
) -> Result<PolicyRevision, Error> {
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let (spec, session) = (experiment.spec(), &desired.session);
    // Absent if it is the default, so that an older policy server reads the revision too.
    let preview = Some(spec.preview_settings()).filter(|settings| *settings != PreviewSettings::default());
    let mut revision = PolicyRevision::new(
        &format!("experiment.{}-{}", kinds::id(experiment)?, session.generation),
        PolicyRevisionSpec {
            policy_server: session.policy.server.clone(),
            policy_ref: RevisedPolicy {
                kind: K::Policy::KIND,
                namespace: experiment.namespace(),
                name: spec.policy_ref.name.clone(),
                uid: session.policy.uid.clone(),
                generation: policy_generation,
            },
            role: RevisionRole::Candidate,
            experiment_ref: Some(RevisedExperiment {
                name: experiment.name_any(),
                uid: uid.clone(),
                generation: session.generation,
            }),
            enabled: desired.is_enabled,
            preview,
            data: spec.policy.clone(),
        },
    );
    revision.metadata.namespace = Some(namespace.to_owned());
    // Policy servers watch the revisions with their label.
    let is_configuration = spec.policy.configuration.is_some();
    let (label, value) =
        if is_configuration { (POINT_LABEL, CONFIGURATION) } else { (SERVER_LABEL, session.policy.server.as_str()) };
    revision.labels_mut().insert(label.to_owned(), value.to_owned());
    revision.labels_mut().insert(EXPERIMENT_LABEL.to_owned(), uid);
    if !session.start.is_empty() {
        revision.annotations_mut().insert(PREVIEW_START.to_owned(), session.start.clone());
    }
    Ok(revision)
}
