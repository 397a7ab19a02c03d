//! The deletion of revisions: the only copy of a live generation must not be deleted by mistake.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Client;
use kube::core::admission::Operation;
use proviso_crds::{ClusterPolicy, ConditionType, Conditions as _, Policy, PolicyRevisionSpec, RevisedPolicy};

use serde::Deserialize;

use super::review::{ReviewedRequest, read};
use super::{API_SERVER_TIMEOUT, Admission};
use crate::kinds::Kind as _;

/// The part of the status of a revision that the operator reads.
#[derive(Deserialize)]
struct Status {
    conditions: Vec<Condition>,
}

/// The part of the spec of a revision that the operator reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    policy_ref: RevisedPolicy,
}

impl Admission {
    /// Returns the reason to deny the deletion of a revision; `None` if the revision may be deleted.
    ///
    /// Denied is only the deletion of a live revision whose policy exists. The registration excludes the controllers of
    /// Kubernetes and Proviso's own programs, so that nothing keeps a namespace from being deleted.
    pub(super) async fn revision_refusal(&self, request: &ReviewedRequest<'_>) -> Option<String> {
        if request.operation != Operation::Delete {
            return None;
        }
        let old = request.old_object().ok()??;
        let conditions = read::<Status>(old.status?).ok()?.conditions;
        if !conditions.is_true(ConditionType::Live) {
            return None;
        }
        let of = read::<Reference>(old.spec()).ok()?.policy_ref;
        // If the API server does not answer, the deletion is not held up.
        let policy = tokio::time::timeout(API_SERVER_TIMEOUT, policy(&of, &self.client)).await.ok()?.ok()??;
        if policy.uid.as_ref() != Some(&of.uid) || policy.deletion_timestamp.is_some() {
            return None;
        }
        if read::<PolicyRevisionSpec>(old.spec()).is_err() && policy.generation == Some(of.generation) {
            // The operator creates a malformed revision of the newest generation again.
            return None;
        }
        Some(format!(
            "generation {} of {} is live: replicas would no longer serve it. Make another generation live first, or \
             disable or delete the policy",
            of.generation, of.name
        ))
    }
}

/// Returns the metadata of the policy of a revision; `None` if the policy does not exist.
async fn policy(of: &RevisedPolicy, client: &Client) -> kube::Result<Option<ObjectMeta>> {
    Ok(match &of.namespace {
        Some(namespace) => Policy::all(client, namespace).get_metadata_opt(&of.name).await?.map(|it| it.metadata),
        None => ClusterPolicy::all(client, "").get_metadata_opt(&of.name).await?.map(|it| it.metadata),
    })
}
