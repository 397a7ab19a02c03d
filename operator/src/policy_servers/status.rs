//! What people are told about a policy server: its status, and Events.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::events::EventType;
use proviso_core::Reason;
use proviso_crds::conditions::{reasons, status_patch};
use proviso_crds::{ConditionState, ConditionType, Conditions as _, PolicyServer, PolicyServerStatus};

use super::context::Context;
use super::names;
use super::secrets::Renewed;
use crate::context::Error;
use crate::objects;

/// Of how many replicas or policies a message speaks; the rest is counted.
const NAMED: usize = 10;

/// The conditions that are written here.
const TYPES: [ConditionType; 3] = [ConditionType::Ready, ConditionType::CertificateValid, ConditionType::Terminating];

/// The facts that a status tells.
struct Facts<'a> {
    applied: &'a StatefulSet,
    pods: &'a [Arc<Pod>],
    renewed: &'a Renewed,
    /// The policies that its deletion waits for.
    users: &'a [String],
}

/// Writes the status if it says something new.
pub(super) async fn write(
    server: &PolicyServer,
    renewed: &Renewed,
    users: &[String],
    context: &Context,
) -> Result<(), Error> {
    let (caches, own) = (&context.caches, server.name_any());
    let stateful_set = caches.stateful_sets.reader().get(&names::name(&own), Some(&context.namespace));
    let facts = Facts {
        applied: &stateful_set.map(|it| StatefulSet::clone(&it)).unwrap_or_default(),
        pods: &caches.pods.reader().by_key(&own),
        renewed,
        users,
    };
    let known = server.status.clone().unwrap_or_default();
    let status = status(server, &known, &facts);
    if !says_nothing_new(&known, &status) {
        let patch = status_patch::<PolicyServer>(&status);
        let (servers, how, patch) = (context.servers(), objects::apply(), Patch::Apply(patch));
        caches.servers.write(servers.patch_status(&own, &how, &patch)).await?;
    }
    if facts.renewed.is_new {
        let certificate = status.conditions.condition(ConditionType::CertificateValid);
        let message = certificate.map(|condition| condition.message.as_str()).unwrap_or_default();
        context.record(server, EventType::Normal, "CertificateIssued", message).await?;
    }
    let waits = status.conditions.condition(ConditionType::Terminating);
    if let Some(waits) = waits.filter(|waits| !known.conditions.contains(waits)) {
        context.record(server, EventType::Warning, &waits.reason, &waits.message).await?;
    }
    Ok(())
}

/// What another controller has written stays as it is.
fn says_nothing_new(known: &PolicyServerStatus, status: &PolicyServerStatus) -> bool {
    let numbers = |it: &PolicyServerStatus| (it.observed_generation, it.replicas, it.ready_replicas);
    let known_ours = TYPES.iter().filter(|type_| known.conditions.condition(**type_).is_some()).count();
    numbers(known) == numbers(status)
        && known_ours == status.conditions.len()
        && status.conditions.iter().all(|condition| known.conditions.contains(condition))
}

fn status(server: &PolicyServer, known: &PolicyServerStatus, facts: &Facts<'_>) -> PolicyServerStatus {
    let (generation, now) = (server.metadata.generation, Timestamp::now());
    let of = |type_, state: ConditionState| state.into_condition(type_, &known.conditions, generation, now);
    let mut conditions = vec![
        of(ConditionType::Ready, ready(server.spec.replicas, facts.applied, facts.pods)),
        of(ConditionType::CertificateValid, certificate(facts.renewed)),
    ];
    if !facts.users.is_empty() {
        let waits = ConditionState::yes(Reason::new("PoliciesRemain"), remaining(facts.users));
        conditions.push(of(ConditionType::Terminating, waits));
    }
    let counted = facts.applied.status.as_ref();
    PolicyServerStatus {
        observed_generation: Some(generation.unwrap_or_default()),
        replicas: Some(counted.map_or(0, |counted| counted.replicas)),
        ready_replicas: Some(counted.and_then(|counted| counted.ready_replicas).unwrap_or_default()),
        leader: None,
        conditions,
    }
}

fn ready(wanted: i32, applied: &StatefulSet, pods: &[Arc<Pod>]) -> ConditionState {
    let counted = applied.status.clone().unwrap_or_default();
    let (ready, updated) = (counted.ready_replicas.unwrap_or_default(), counted.updated_replicas.unwrap_or_default());
    let is_current = counted.observed_generation == applied.metadata.generation
        && (updated == wanted || counted.update_revision == counted.current_revision);
    if wanted == 0 {
        return ConditionState::no(reasons::NO_REPLICAS, "spec.replicas is 0: nobody evaluates");
    }
    if is_current && ready == wanted && counted.replicas == wanted {
        let message = format!("{ready} of {wanted} replicas are Ready");
        return ConditionState::yes(Reason::new("AllReplicasReady"), message);
    }
    let mut message = format!("{ready} of {wanted} replicas are Ready");
    if !is_current {
        message = format!("{message}, {updated} run what the spec says");
    }
    let troubles = pods.iter().filter_map(|pod| trouble(pod));
    let troubles = listed(&troubles.collect::<Vec<_>>(), "; ");
    if !troubles.is_empty() {
        message = format!("{message}; {troubles}");
    }
    ConditionState::no(Reason::new(if is_current { "ReplicasNotReady" } else { "RollingOut" }), message)
}

/// Why a pod is not Ready, or was not a moment ago; nothing about one that is well.
fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let unscheduled = conditions.filter(|it| it.type_ == "PodScheduled" && it.status == "False");
    let unscheduled = unscheduled.map(|it| format!("Unschedulable ({})", it.message.as_deref().unwrap_or_default()));
    let containers = status.container_statuses.iter().flatten().filter(|it| !it.ready).filter_map(cause);
    let causes: Vec<_> = unscheduled.chain(containers).collect();
    (!causes.is_empty()).then(|| format!("{}: {}", pod.name_any(), causes.join(", ")))
}

fn cause(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref()).and_then(|it| {
        let message = it.message.as_ref().map(|message| format!(" ({message})")).unwrap_or_default();
        Some(format!("{}{message}", it.reason.as_ref()?))
    });
    let ended = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| {
        let ended = state?.terminated.as_ref()?;
        Some(format!("{}, exit code {}", ended.reason.as_deref().unwrap_or("Ended"), ended.exit_code))
    };
    let before = ended(container.last_state.as_ref()).map(|before| format!("before: {before}"));
    let causes: Vec<_> = [waiting, ended(state), before].into_iter().flatten().collect();
    (!causes.is_empty()).then(|| causes.join(", "))
}

fn certificate(renewed: &Renewed) -> ConditionState {
    match &renewed.certificate {
        Ok(expires_at) => {
            ConditionState::yes(Reason::new("Issued"), format!("valid until {expires_at}, and renewed before"))
        }
        Err(why) => ConditionState::no(Reason::new("NotIssued"), why.as_str()),
    }
}

fn remaining(users: &[String]) -> String {
    format!(
        "deletion waits, and everything goes on, until no policy needs this policy server: {}; delete them or give them \
         another spec.policyServer",
        listed(users, ", ")
    )
}

fn listed(items: &[String], separator: &str) -> String {
    let named = items.iter().take(NAMED).cloned().collect::<Vec<_>>().join(separator);
    if items.len() <= NAMED { named } else { format!("{named} and {} more", items.len() - NAMED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stateful_set(status: &Value) -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"generation": 2}, "status": status})).unwrap()
    }

    #[test]
    fn ready_means_all_replicas_of_this_spec() {
        let done = json!({
            "observedGeneration": 2, "replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "updateRevision": "b",
            "currentRevision": "b",
        });
        let but = |field: &str, value: Value| {
            let mut status = done.clone();
            status[field] = value;
            status
        };
        let mut rolling = but("currentRevision", json!("a"));
        rolling["updatedReplicas"] = json!(1);
        for (wanted, status, expected) in [
            (3, done.clone(), ("True", "AllReplicasReady", "3 of 3 replicas are Ready")),
            (0, but("replicas", json!(0)), ("False", "NoReplicas", "spec.replicas is 0: nobody evaluates")),
            (3, but("readyReplicas", json!(2)), ("False", "ReplicasNotReady", "2 of 3 replicas are Ready")),
            (3, rolling, ("False", "RollingOut", "3 of 3 replicas are Ready, 1 run what the spec says")),
            // The StatefulSet's controller has not seen it yet.
            (
                3,
                but("observedGeneration", json!(1)),
                ("False", "RollingOut", "3 of 3 replicas are Ready, 3 run what the spec says"),
            ),
            (2, done.clone(), ("False", "ReplicasNotReady", "3 of 2 replicas are Ready")),
            (1, json!({"replicas": 0}), ("False", "RollingOut", "0 of 1 replicas are Ready, 0 run what the spec says")),
        ] {
            let said = ready(wanted, &stateful_set(&status), &[]);
            let said = (said.status.as_str(), said.reason.as_str(), said.message.as_str());
            assert_eq!(said, expected, "{wanted}: {status}");
        }
    }

    #[test]
    fn a_replica_that_is_not_ready_says_why() {
        for (status, expected) in [
            (json!({}), None),
            (json!({"containerStatuses": [{"ready": true, "lastState": {"terminated": {"exitCode": 1}}}]}), None),
            (
                json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}),
                Some("a-0: Unschedulable (0/3 nodes)"),
            ),
            (
                json!({"containerStatuses": [{
                    "ready": false,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                }]}),
                Some("a-0: CrashLoopBackOff, before: OOMKilled, exit code 137"),
            ),
            (
                json!({"containerStatuses": [
                    {"ready": false, "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}},
                ]}),
                Some("a-0: ErrImagePull (no such host)"),
            ),
        ] {
            let mut status = status;
            for container in status["containerStatuses"].as_array_mut().into_iter().flatten() {
                (container["name"], container["image"]) = (json!("a"), json!("a"));
                (container["imageID"], container["restartCount"]) = (json!(""), json!(0));
            }
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "a-0"}, "status": status})).unwrap();
            assert_eq!(trouble(&pod).as_deref(), expected, "{status}");
        }
    }

    #[test]
    fn long_lists_are_counted() {
        let names: Vec<_> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(listed(&names, ", "), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
        assert!(remaining(&names[..2]).contains("0, 1;"));
    }
}
