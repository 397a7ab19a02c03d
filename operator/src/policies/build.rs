//! Builds the revision of a policy's generation. Pure.

use kube::ResourceExt as _;
use proviso_crds::names::{COMMITTED_EXPERIMENT, CONFIGURATION, POINT_LABEL, POLICY_LABEL, SERVER_LABEL};
use proviso_crds::{
    CommittedExperiment, MAX_REVISION_HISTORY, PolicyRevision, PolicyRevisionSpec, PolicySpec, RevisedExperiment,
    RevisedPolicy, RevisionRole,
};

use crate::context::Error;
use crate::kinds::{self, PolicyObject};
use crate::revisions::Revision;

/// Builds the revision of the newest generation. `before` has the revisions of earlier generations.
pub(super) fn revision<K: PolicyObject>(
    policy: &K,
    before: &[Revision],
    namespace: &str,
) -> Result<PolicyRevision, Error> {
    let generation = policy.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
    // An older version admitted longer histories.
    let spec = policy.spec();
    let history = spec.revision_history_limit.min(MAX_REVISION_HISTORY);
    let mut revision = PolicyRevision::new(
        &format!("{}-{generation}", kinds::id(policy)?),
        PolicyRevisionSpec {
            policy_server: spec.policy_server.clone(),
            policy_ref: RevisedPolicy {
                kind: K::KIND,
                namespace: policy.namespace(),
                name: policy.name_any(),
                uid: uid.clone(),
                generation,
            },
            role: RevisionRole::Live,
            experiment_ref: committed(policy, before),
            enabled: spec.enabled,
            preview: None,
            data: PolicySpec { revision_history_limit: history, ..spec.clone() },
        },
    );
    revision.metadata.namespace = Some(namespace.to_owned());
    // Policy servers watch the revisions with their label.
    let (label, value) = if spec.configuration.is_some() {
        (POINT_LABEL, CONFIGURATION)
    } else {
        (SERVER_LABEL, spec.policy_server.as_str())
    };
    revision.labels_mut().insert(label.to_owned(), value.to_owned());
    revision.labels_mut().insert(POLICY_LABEL.to_owned(), uid);
    if let Some(committed) = policy.annotations().get(COMMITTED_EXPERIMENT) {
        revision.annotations_mut().insert(COMMITTED_EXPERIMENT.to_owned(), committed.clone());
    }
    Ok(revision)
}

/// Returns the experiment whose commit created this generation. The annotation stays on the policy, but the
/// experiment was committed to the first generation that has the annotation. The result is for people: users who may
/// change the policy may write the annotation.
fn committed<K: PolicyObject>(policy: &K, before: &[Revision]) -> Option<RevisedExperiment> {
    let annotation = policy.annotations().get(COMMITTED_EXPERIMENT)?;
    let is_known = before.iter().any(|revision| revision.annotations().get(COMMITTED_EXPERIMENT) == Some(annotation));
    let committed = CommittedExperiment::of(policy.annotations()).filter(|_| !is_known)?;
    let CommittedExperiment { name, uid, generation, .. } = committed;
    Some(RevisedExperiment { name, uid, generation })
}
