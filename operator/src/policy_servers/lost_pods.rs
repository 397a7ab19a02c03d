//! Replaces the pods of lost nodes. Kubernetes deletes the pods of a node that does not report any more, but only the
//! kubelet of the node can confirm that they have ended. A `StatefulSet` creates no pod of the same name before that,
//! so the replica would be missing until a person deletes the pod by force. The operator does that.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource as _, ResourceExt as _};
use proviso_crds::{PolicyServer, reasons};

use super::context::Context;
use super::names;
use crate::context::Error;
use crate::objects::duration_until;
use crate::replicas::ready_condition;

/// The time after the grace period of a pod in which its kubelet may still confirm the end of the pod. Also the
/// tolerated difference between the clocks of the operator and the API server.
const CONFIRMATION_TIME: Duration = Duration::from_secs(10);
/// The interval between two checks of a Ready node that does not confirm the end of a pod: the node may be lost later.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The progress of the deletion of a pod.
#[derive(Debug, PartialEq, Eq)]
enum Deletion<'a> {
    /// The pod is not being deleted, or needs no attention.
    Unneeded,
    /// The kubelet has time to confirm the end of the pod, until this time.
    Confirmable(Timestamp),
    /// The kubelet of this node has not confirmed the end of the pod in time.
    Overdue(&'a str),
}

/// Deletes by force the pods whose nodes are lost, so that the `StatefulSet` creates others. Returns the time until the
/// next check; `None` if only an event can make one necessary.
pub(super) async fn replace(server: &PolicyServer, context: &Context) -> Result<Option<Duration>, Error> {
    let (own, now) = (server.name_any(), Timestamp::now());
    let mut next_check: Option<Duration> = None;
    for pod in context.caches.pods.reader().by_key(&own) {
        let wait = match deletion(&pod, &names::name(&own), now) {
            Deletion::Unneeded => continue,
            Deletion::Confirmable(until) => duration_until(until, now),
            Deletion::Overdue(node) => {
                // The operator reads the node only now, so that it needs no watch of all nodes.
                let found = Api::<Node>::all(context.client.clone()).get_opt(node).await?;
                if let Some(problem) = node_problem(found.as_ref()) {
                    delete_by_force(server, &pod, &format!("{node}: {problem}"), context).await?;
                    continue;
                }
                CHECK_INTERVAL
            }
        };
        next_check = Some(next_check.map_or(wait, |other| other.min(wait)));
    }
    Ok(next_check)
}

/// Returns the progress of the deletion of a replica of `stateful_set`. A Ready pod needs no attention, because it
/// still answers: Kubernetes marks the pods of a lost node as not Ready.
fn deletion<'a>(pod: &'a Pod, stateful_set: &str, now: Timestamp) -> Deletion<'a> {
    let mut owners = pod.owner_references().iter();
    let is_owned = owners.any(|owner| owner.kind == "StatefulSet" && owner.name == stateful_set);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    match (&pod.metadata.deletion_timestamp, node) {
        // The timestamp is the end of the grace period.
        (Some(end), Some(node)) if is_owned && ready_condition(pod).is_none() => {
            let until = end.0 + CONFIRMATION_TIME;
            if now < until { Deletion::Confirmable(until) } else { Deletion::Overdue(node) }
        }
        _ => Deletion::Unneeded,
    }
}

/// Returns why the kubelet of a node confirms nothing; `None` if the node is Ready. `node` is `None` if the node does
/// not exist.
fn node_problem(node: Option<&Node>) -> Option<String> {
    let Some(node) = node else { return Some("the node does not exist".to_owned()) };
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    match conditions.find(|condition| condition.type_ == "Ready") {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some(format!("Ready is {} ({})", ready.status, ready.reason.as_deref().unwrap_or("no reason"))),
        None => Some("the node has no condition Ready".to_owned()),
    }
}

/// Deletes the pod from the API server without a confirmation of its kubelet, and publishes an Event.
///
/// The node may only be cut off, and the old pod may still run, beside a new pod of the same name. Kubernetes waits
/// because this can damage the data of a database. Two pods of the same name do no harm here: the replicas have no
/// quorum; the report of a replica and the identity of the leader in the Lease have the uid of the pod; two leaders
/// write the same status; the files of a shared cache are named by their content and signed; and the API server calls
/// only Ready pods. A volume that only one node can mount stays on the lost node, and the new pod waits for the volume.
/// When the node returns, its kubelet ends the old pod.
async fn delete_by_force(server: &PolicyServer, pod: &Pod, problem: &str, context: &Context) -> Result<(), Error> {
    let name = pod.name_any();
    let only = Preconditions { uid: pod.uid(), resource_version: None };
    let options = DeleteParams { grace_period_seconds: Some(0), preconditions: Some(only), ..DeleteParams::default() };
    match context.namespaced::<Pod>().delete(&name, &options).await {
        // The kubelet was faster.
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
        result => drop(result?),
    }
    tracing::warn!(policy_server = server.name_any(), pod = name, problem, "deleted the pod of a lost node by force");
    let event = Event {
        type_: EventType::Warning,
        reason: reasons::LOST_POD_DELETED.to_string(),
        note: Some(format!("deleted pod {name} by force, because its node is lost: {problem}")),
        action: "Reconcile".to_owned(),
        secondary: Some(pod.object_ref(&())),
    };
    context.publish_or_log(server, event).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    /// Returns a pod that is not Ready, on a node, with the end of its grace period at second 60.
    fn deleted_pod() -> Value {
        json!({
            "metadata": {
                "name": "policy-server-a-0",
                "deletionTimestamp": at(60).to_string(),
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "policy-server-a", "uid": "1"},
                ],
            },
            "spec": {"containers": [], "nodeName": "node-a"},
            "status": {"conditions": [{"type": "Ready", "status": "False"}]},
        })
    }

    #[test]
    fn a_node_is_checked_when_it_has_not_confirmed_the_end_of_a_replica_in_time() {
        let with = |pointer: &str, value: Value| {
            let mut pod = deleted_pod();
            *pod.pointer_mut(pointer).unwrap() = value;
            pod
        };
        for (pod, second, expected) in [
            (deleted_pod(), 0, Deletion::Confirmable(at(70))),
            (deleted_pod(), 69, Deletion::Confirmable(at(70))),
            (deleted_pod(), 70, Deletion::Overdue("node-a")),
            (with("/status", Value::Null), 70, Deletion::Overdue("node-a")),
            (with("/metadata/deletionTimestamp", Value::Null), 70, Deletion::Unneeded),
            (with("/spec/nodeName", Value::Null), 70, Deletion::Unneeded),
            (with("/status/conditions/0/status", json!("True")), 70, Deletion::Unneeded),
            (with("/metadata/ownerReferences", json!([])), 70, Deletion::Unneeded),
            (with("/metadata/ownerReferences/0/name", json!("policy-server-b")), 70, Deletion::Unneeded),
            (with("/metadata/ownerReferences/0/kind", json!("Deployment")), 70, Deletion::Unneeded),
        ] {
            let parsed: Pod = serde_json::from_value(pod.clone()).unwrap();
            assert_eq!(deletion(&parsed, "policy-server-a", at(second)), expected, "{pod} at {second}");
        }
    }

    #[test]
    fn a_node_has_a_problem_unless_it_exists_and_is_ready() {
        let node = |conditions: Value| {
            Some(serde_json::from_value::<Node>(json!({"status": {"conditions": conditions}})).unwrap())
        };
        let ready = |status: &str| json!({"type": "Ready", "status": status, "reason": "Because"});
        let pressure = json!({"type": "MemoryPressure", "status": "True"});
        for (node, expected) in [
            (node(json!([pressure, ready("True")])), None),
            (node(json!([pressure, ready("False")])), Some("Ready is False (Because)")),
            (node(json!([ready("Unknown")])), Some("Ready is Unknown (Because)")),
            (node(json!([pressure])), Some("the node has no condition Ready")),
            (node(Value::Null), Some("the node has no condition Ready")),
            (None, Some("the node does not exist")),
        ] {
            assert_eq!(node_problem(node.as_ref()).as_deref(), expected, "{node:?}");
        }
    }
}
