//! The replicas of policy servers, as input of the decisions about policies and experiments: Ready pods, and the
//! results that replicas report in the status of a revision.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};
use proviso_core::rollout::{self, Replica};
use proviso_crds::ReplicaStatus;
use proviso_crds::names::SERVER_LABEL;

/// Converts the status of a replica to its result for a revision.
pub(crate) fn replica(status: &ReplicaStatus) -> Replica {
    Replica { pod: rollout::Pod { name: status.name.clone(), uid: status.pod_uid.clone() }, result: status.outcome() }
}

/// Returns the Ready pods of this policy server.
pub(crate) fn ready_pods(pods: &[Arc<Pod>], server: &str) -> Vec<rollout::Pod> {
    let of_server =
        |pod: &&Arc<Pod>| pod.labels().get(SERVER_LABEL).is_some_and(|label| label == server) && is_ready(pod);
    pods.iter()
        .filter(of_server)
        .filter_map(|pod| Some(rollout::Pod { name: pod.name_any(), uid: pod.uid()? }))
        .collect()
}

/// Returns true if the pod is Ready and not being deleted.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    is_ready && pod.meta().deletion_timestamp.is_none()
}
