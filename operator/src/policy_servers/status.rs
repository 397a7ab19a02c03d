//! The status of a policy server, and its Events.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::events::EventType;
use proviso_crds::conditions::status_patch;
use proviso_crds::{ConditionState, ConditionType, Conditions as _, PolicyServer, PolicyServerStatus, reasons};

use super::apply::Refusal;
use super::context::Context;
use super::names;
use super::out_of_memory::{self, Exhausted};
use super::secrets::RenewedSecrets;
use crate::context::Error;
use crate::objects;

/// The maximum number of replicas or policies that a message names; the rest are counted.
const MAX_LISTED: usize = 10;

/// The conditions that this module writes.
const TYPES: [ConditionType; 3] = [ConditionType::Ready, ConditionType::CertificateValid, ConditionType::Terminating];

/// The input of a status.
struct Facts<'a> {
    stateful_set: &'a StatefulSet,
    pods: &'a [Arc<Pod>],
    renewed: &'a RenewedSecrets,
    /// The policies that the deletion waits for.
    dependents: &'a [String],
    /// The objects that the API server refused, each with its message.
    refused: &'a [String],
    /// The replicas whose memory was exhausted.
    exhausted: &'a [Exhausted],
}

/// Writes the status if it has changed.
pub(super) async fn write(
    server: &PolicyServer,
    renewed: &RenewedSecrets,
    dependents: &[String],
    refusals: &[Refusal],
    context: &Context,
) -> Result<(), Error> {
    let (caches, own) = (&context.caches, server.name_any());
    let stateful_set = caches.stateful_sets.reader().get(&names::name(&own), Some(&context.namespace));
    let pods = caches.pods.reader().by_key(&own);
    let mut exhausted = out_of_memory::exhausted(&pods, Timestamp::now());
    // The message names only these replicas, and only a replica that it names has an Event already.
    exhausted.truncate(MAX_LISTED);
    let facts = Facts {
        stateful_set: &stateful_set.map(|it| StatefulSet::clone(&it)).unwrap_or_default(),
        pods: &pods,
        renewed,
        dependents,
        refused: &refusals.iter().filter_map(Refusal::message).collect::<Vec<_>>(),
        exhausted: &exhausted,
    };
    let known = server.status.clone().unwrap_or_default();
    out_of_memory::publish_new(server, &known, &exhausted, context).await;
    let status = status(server, &known, &facts);
    if !is_unchanged(&known, &status) {
        let patch = status_patch::<PolicyServer>(&status);
        let (servers, params, patch) = (context.servers(), objects::apply_params(), Patch::Apply(patch));
        caches.servers.write(servers.patch_status(&own, &params, &patch)).await?;
    }
    if facts.renewed.is_new {
        let certificate = status.conditions.condition(ConditionType::CertificateValid);
        let message = certificate.map(|condition| condition.message.as_str()).unwrap_or_default();
        context.record(server, EventType::Normal, reasons::CERTIFICATE_ISSUED.as_str(), message).await?;
    }
    let terminating = status.conditions.condition(ConditionType::Terminating);
    if let Some(terminating) = terminating.filter(|terminating| !known.conditions.contains(terminating)) {
        context.record(server, EventType::Warning, terminating.reason.as_str(), &terminating.message).await?;
    }
    Ok(())
}

/// Returns whether two statuses are equal, without the conditions of the other controller.
fn is_unchanged(known: &PolicyServerStatus, status: &PolicyServerStatus) -> bool {
    let numbers = |it: &PolicyServerStatus| (it.observed_generation, it.replicas, it.ready_replicas);
    let known_ours = TYPES.iter().filter(|type_| known.conditions.condition(**type_).is_some()).count();
    numbers(known) == numbers(status)
        && known_ours == status.conditions.len()
        && status.conditions.iter().all(|condition| known.conditions.contains(condition))
}

fn status(server: &PolicyServer, known: &PolicyServerStatus, facts: &Facts<'_>) -> PolicyServerStatus {
    let (generation, now) = (server.metadata.generation, Timestamp::now());
    let of = |type_, state: ConditionState| state.into_condition(type_, &known.conditions, generation, now);
    let replicas = complete(facts.refused, ready(server.spec.replicas, facts.stateful_set, facts.pods));
    let mut conditions = vec![
        of(ConditionType::Ready, with_exhausted(replicas, facts.exhausted)),
        of(ConditionType::CertificateValid, certificate(facts.renewed)),
    ];
    if !facts.dependents.is_empty() {
        let terminating = ConditionState::yes(reasons::POLICIES_REMAIN, dependents_message(facts.dependents));
        conditions.push(of(ConditionType::Terminating, terminating));
    }
    let counted = facts.stateful_set.status.as_ref();
    PolicyServerStatus {
        observed_generation: Some(generation.unwrap_or_default()),
        replicas: Some(counted.map_or(0, |counted| counted.replicas)),
        ready_replicas: Some(counted.and_then(|counted| counted.ready_replicas).unwrap_or_default()),
        leader: None,
        conditions,
    }
}

/// Returns the state of the policy server: the refused objects, or else the state of its replicas.
fn complete(refused: &[String], replicas: ConditionState) -> ConditionState {
    if refused.is_empty() {
        return replicas;
    }
    let message = format!("{}; {}", join_limited(refused, "; "), replicas.message);
    ConditionState::no(reasons::APPLY_FAILED, message)
}

/// Adds the replicas whose memory was exhausted to the message. They may be Ready again.
fn with_exhausted(state: ConditionState, exhausted: &[Exhausted]) -> ConditionState {
    let messages = exhausted.iter().map(|exhausted| exhausted.message.as_str());
    let message = std::iter::once(state.message.as_str()).chain(messages).collect::<Vec<_>>().join("; ");
    ConditionState { message, ..state }
}

fn ready(desired: i32, stateful_set: &StatefulSet, pods: &[Arc<Pod>]) -> ConditionState {
    let counted = stateful_set.status.clone().unwrap_or_default();
    let (ready, updated) = (counted.ready_replicas.unwrap_or_default(), counted.updated_replicas.unwrap_or_default());
    let is_current = counted.observed_generation == stateful_set.metadata.generation
        && (updated == desired || counted.update_revision == counted.current_revision);
    if desired == 0 {
        return ConditionState::no(reasons::NO_REPLICAS, "spec.replicas is 0: no replica evaluates policies");
    }
    if is_current && ready == desired && counted.replicas == desired {
        let node = only_node(pods).map(|node| format!(", all of them on node {node}")).unwrap_or_default();
        let message = format!("{ready} of {desired} replicas are Ready{node}");
        return ConditionState::yes(reasons::ALL_REPLICAS_READY, message);
    }
    let mut message = format!("{ready} of {desired} replicas are Ready");
    if !is_current {
        message = format!("{message}, {updated} run the current spec");
    }
    let problems = pods.iter().filter_map(|pod| pod_problem(pod));
    let problems = join_limited(&problems.collect::<Vec<_>>(), "; ");
    if !problems.is_empty() {
        message = format!("{message}; {problems}");
    }
    ConditionState::no(if is_current { reasons::REPLICAS_NOT_READY } else { reasons::ROLLING_OUT }, message)
}

/// Returns the node that all replicas run on, so that its loss would end all of them; `None` if there are several
/// nodes, or fewer than two replicas.
fn only_node(pods: &[Arc<Pod>]) -> Option<&str> {
    let mut nodes = pods.iter().map(|pod| pod.spec.as_ref()?.node_name.as_deref());
    let first = nodes.next()??;
    (pods.len() > 1 && nodes.all(|node| node == Some(first))).then_some(first)
}

/// Returns the reason why a pod is not Ready, with the last exit of its containers; `None` if the pod is healthy.
fn pod_problem(pod: &Pod) -> Option<String> {
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

fn certificate(renewed: &RenewedSecrets) -> ConditionState {
    match &renewed.certificate {
        Ok(expires_at) => ConditionState::yes(reasons::ISSUED, format!("valid until {expires_at}, and renewed before")),
        Err(reason) => ConditionState::no(reasons::NOT_ISSUED, reason.as_str()),
    }
}

fn dependents_message(dependents: &[String]) -> String {
    format!(
        "the deletion waits until no policy needs this policy server: {}; delete these policies, or give them another \
         spec.policyServer",
        join_limited(dependents, ", ")
    )
}

fn join_limited(items: &[String], separator: &str) -> String {
    let named = items.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(separator);
    if items.len() <= MAX_LISTED { named } else { format!("{named} and {} more", items.len() - MAX_LISTED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stateful_set(status: &Value) -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"generation": 2}, "status": status})).unwrap()
    }

    #[test]
    fn ready_is_true_if_all_replicas_run_the_current_spec() {
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
        for (desired, status, expected) in [
            (3, done.clone(), ("True", "AllReplicasReady", "3 of 3 replicas are Ready")),
            (
                0,
                but("replicas", json!(0)),
                ("False", "NoReplicas", "spec.replicas is 0: no replica evaluates policies"),
            ),
            (3, but("readyReplicas", json!(2)), ("False", "ReplicasNotReady", "2 of 3 replicas are Ready")),
            (3, rolling, ("False", "RollingOut", "3 of 3 replicas are Ready, 1 run the current spec")),
            // The controller of the StatefulSet has not seen the spec yet.
            (
                3,
                but("observedGeneration", json!(1)),
                ("False", "RollingOut", "3 of 3 replicas are Ready, 3 run the current spec"),
            ),
            (2, done.clone(), ("False", "ReplicasNotReady", "3 of 2 replicas are Ready")),
            (1, json!({"replicas": 0}), ("False", "RollingOut", "0 of 1 replicas are Ready, 0 run the current spec")),
        ] {
            let state = ready(desired, &stateful_set(&status), &[]);
            let state = (state.status.as_str(), state.reason.as_str(), state.message.as_str());
            assert_eq!(state, expected, "{desired}: {status}");
        }
    }

    #[test]
    fn refused_objects_come_before_the_state_of_the_replicas() {
        let replicas = ConditionState::yes(reasons::ALL_REPLICAS_READY, "2 of 2 replicas are Ready");
        assert_eq!(complete(&[], replicas.clone()), replicas);
        let refused = ["Service a: forbidden".to_owned(), "ConfigMap b: too large".to_owned()];
        let message = "Service a: forbidden; ConfigMap b: too large; 2 of 2 replicas are Ready";
        assert_eq!(complete(&refused, replicas), ConditionState::no(reasons::APPLY_FAILED, message));
    }

    #[test]
    fn replicas_whose_memory_was_exhausted_are_named_even_if_they_are_ready_again() {
        let ready = ConditionState::yes(reasons::ALL_REPLICAS_READY, "2 of 2 replicas are Ready");
        assert_eq!(with_exhausted(ready.clone(), &[]), ready);
        let exhausted = |message: &str| Exhausted { pod: Arc::default(), message: message.to_owned() };
        let state = with_exhausted(ready, &[exhausted("a-0: no memory"), exhausted("a-1: no memory")]);
        let message = "2 of 2 replicas are Ready; a-0: no memory; a-1: no memory";
        assert_eq!(state, ConditionState::yes(reasons::ALL_REPLICAS_READY, message));
    }

    #[test]
    fn only_node_returns_the_node_whose_loss_would_end_all_replicas() {
        for (nodes, expected) in [
            (json!([]), None),
            (json!(["a"]), None),
            (json!(["a", "a"]), Some("a")),
            (json!(["a", "b"]), None),
            (json!(["a", null]), None),
            (json!([null, null]), None),
            (json!(["a", "a", "b"]), None),
        ] {
            let pod = |node: &Value| {
                let pod = json!({"spec": {"containers": [], "nodeName": node}});
                Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
            };
            let pods: Vec<_> = nodes.as_array().unwrap().iter().map(pod).collect();
            assert_eq!(only_node(&pods), expected, "{nodes}");
        }
    }

    #[test]
    fn pod_problem_returns_the_cause_of_an_unready_pod() {
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
            assert_eq!(pod_problem(&pod).as_deref(), expected, "{status}");
        }
    }

    #[test]
    fn long_lists_are_truncated_and_counted() {
        let names: Vec<_> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(join_limited(&names, ", "), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
        assert!(dependents_message(&names[..2]).contains("0, 1;"));
    }
}
