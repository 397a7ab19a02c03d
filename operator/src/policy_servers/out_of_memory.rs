//! Reports replicas that the kernel has ended because their memory was exhausted. Kubernetes restarts such a replica at
//! once, so the policy server is often Ready again before a person looks at it. Without this report, only the pod would
//! have the cause.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::events::{Event, EventType};
use kube::{Resource as _, ResourceExt as _};
use proviso_crds::{ConditionType, Conditions as _, PolicyServer, PolicyServerStatus, reasons};

use super::context::Context;
use crate::replicas::elapsed;

/// The reason of the kubelet for a container that the kernel has ended because its memory was exhausted.
const OOM_KILLED: &str = "OOMKilled";
/// The time for which the status names such a replica. An older end says little about the current settings.
const REPORT_TIME: Duration = Duration::from_hours(1);

/// A replica whose memory was exhausted.
#[derive(Debug)]
pub(super) struct Exhausted {
    pub pod: Arc<Pod>,
    /// The replica, its memory limit, the time and the number of restarts, with the remedy.
    pub message: String,
}

/// Returns the replicas whose last end was due to exhausted memory and is recent, in the order of `pods`.
pub(super) fn exhausted(pods: &[Arc<Pod>], now: Timestamp) -> Vec<Exhausted> {
    let exhausted = |pod: &Arc<Pod>| Some(Exhausted { pod: Arc::clone(pod), message: message(pod, now)? });
    pods.iter().filter_map(exhausted).collect()
}

fn message(pod: &Pod, now: Timestamp) -> Option<String> {
    let mut containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let (container, time) = containers.find_map(|it| Some((it, exhausted_at(it)?)))?;
    if elapsed(Some(time), now) >= REPORT_TIME {
        return None;
    }
    let (name, restarts) = (pod.name_any(), container.restart_count);
    let end = format!("at {:.0} ({OOM_KILLED}, restarts so far: {restarts})", time.0);
    Some(match memory_limit(pod, &container.name) {
        Some(limit) => format!(
            "{name} exceeded its memory limit of {limit} {end}: raise spec.resources.limits.memory, or lower \
             spec.evaluation.memoryLimitMiB or spec.evaluation.concurrency"
        ),
        None => format!(
            "{name} was ended because its node had no memory left {end}: set spec.resources.requests.memory to the \
             memory that a replica uses"
        ),
    })
}

/// Returns the time at which a container ended because its memory was exhausted; `None` if its last end had another
/// cause.
fn exhausted_at(container: &ContainerStatus) -> Option<&Time> {
    let mut states = [&container.state, &container.last_state].into_iter();
    let ended = states.find_map(|state| state.as_ref()?.terminated.as_ref())?;
    // containerd also reports `OOMKilled` for a container whose child process was ended for this reason earlier.
    let is_exhausted = ended.reason.as_deref() == Some(OOM_KILLED) && ended.exit_code != 0;
    ended.finished_at.as_ref().filter(|_| is_exhausted)
}

fn memory_limit<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let containers = &pod.spec.as_ref()?.containers;
    let container = containers.iter().find(|it| it.name == container)?;
    Some(container.resources.as_ref()?.limits.as_ref()?.get("memory")?.0.as_str())
}

/// Publishes an Event for each of these replicas that the known status does not name yet.
pub(super) async fn publish_new(
    server: &PolicyServer,
    known: &PolicyServerStatus,
    exhausted: &[Exhausted],
    context: &Context,
) {
    let reported = known.conditions.condition(ConditionType::Ready).map_or("", |ready| ready.message.as_str());
    for Exhausted { pod, message } in exhausted.iter().filter(|it| !reported.contains(&it.message)) {
        tracing::warn!(policy_server = server.name_any(), pod = pod.name_any(), "a replica ran out of memory");
        let event = Event {
            type_: EventType::Warning,
            reason: reasons::OUT_OF_MEMORY.to_string(),
            note: Some(message.clone()),
            action: "Reconcile".to_owned(),
            secondary: Some(pod.object_ref(&())),
        };
        context.publish_or_log(server, event).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + 60 * minute).unwrap()
    }

    fn ended(reason: &str, exit_code: i32, minute: i64) -> Value {
        json!({"terminated": {"reason": reason, "exitCode": exit_code, "finishedAt": at(minute).to_string()}})
    }

    fn pod(state: &Value, last_state: &Value, limits: &Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": "policy-server-a-0"},
            "spec": {"containers": [{"name": "policy-server", "resources": {"limits": limits}}]},
            "status": {"containerStatuses": [{
                "name": "policy-server", "image": "a", "imageID": "", "ready": true, "restartCount": 2,
                "state": state, "lastState": last_state,
            }]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_replica_is_named_if_its_last_end_was_out_of_memory() {
        let running = json!({"running": {}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let none = json!({});
        for (state, last_state, minute, expected) in [
            (&running, &ended("OOMKilled", 137, 0), 0, true),
            (&running, &ended("OOMKilled", 137, 0), 59, true),
            (&running, &ended("OOMKilled", 137, 0), 60, false),
            // The clock of the node is ahead.
            (&running, &ended("OOMKilled", 137, 5), 0, true),
            (&waiting, &ended("OOMKilled", 137, 0), 0, true),
            (&ended("OOMKilled", 137, 0), &none, 0, true),
            (&ended("OOMKilled", 137, 0), &ended("Error", 1, 0), 0, true),
            // The container has ended once more, for another reason.
            (&ended("Error", 1, 0), &ended("OOMKilled", 137, 0), 0, false),
            (&running, &ended("Error", 137, 0), 0, false),
            (&running, &ended("Completed", 0, 0), 0, false),
            (&running, &ended("OOMKilled", 0, 0), 0, false),
            (&running, &json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}}), 0, false),
            (&running, &none, 0, false),
        ] {
            let found = exhausted(&[pod(state, last_state, &none)], at(minute));
            assert_eq!(!found.is_empty(), expected, "{state} {last_state} after {minute} minutes");
        }
        assert!(exhausted(&[Arc::default()], at(0)).is_empty());
    }

    #[test]
    fn the_message_has_the_limit_the_time_and_the_remedy() {
        let of = |limits: Value| {
            let found = exhausted(&[pod(&json!({}), &ended("OOMKilled", 137, 0), &limits)], at(1));
            found[0].message.clone()
        };
        assert_eq!(
            of(json!({"memory": "256Mi", "cpu": "1"})),
            "policy-server-a-0 exceeded its memory limit of 256Mi at 1970-01-12T13:46:40Z (OOMKilled, restarts so far: \
             2): raise spec.resources.limits.memory, or lower spec.evaluation.memoryLimitMiB or \
             spec.evaluation.concurrency"
        );
        assert_eq!(
            of(json!({"cpu": "1"})),
            "policy-server-a-0 was ended because its node had no memory left at 1970-01-12T13:46:40Z (OOMKilled, \
             restarts so far: 2): set spec.resources.requests.memory to the memory that a replica uses"
        );
    }
}
