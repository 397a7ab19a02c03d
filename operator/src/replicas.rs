//! The replicas of policy servers, as input of the decisions about policies and experiments: Ready pods, and the
//! results that replicas report in the status of a revision. This file also renders their failures for messages.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource as _, ResourceExt as _};
use proviso_core::Failure;
use proviso_core::rollout::{self, ReadyPod, Replica};
use proviso_crds::names::SERVER_LABEL;
use proviso_crds::{ConditionStatus, ReplicaStatus, reasons};

/// The maximum number of different failures in a message, and of pods that it names for each of them.
const MAX_NAMED: usize = 5;
/// The maximum length of one failure in a message, in characters.
const MAX_FAILURE: usize = 1024;

/// Converts the status of a replica to its report about a revision. A replica that serves the revision for another reason
/// than [`reasons::LOADED`] reports a restriction; [`reasons::SUSPENDED`] is none, because the candidate was disabled.
pub(crate) fn replica(status: &ReplicaStatus) -> Replica {
    let expected = [reasons::LOADED, reasons::SUSPENDED];
    let is_restricted = status.ready == ConditionStatus::True && expected.iter().all(|it| status.reason != *it);
    Replica {
        pod: rollout::Pod { name: status.name.clone(), uid: status.pod_uid.clone() },
        result: status.outcome(),
        warning: is_restricted.then(|| Failure::new(status.reason.clone(), status.message.clone())),
    }
}

/// Returns the Ready pods of this policy server, ordered by name.
pub(crate) fn ready_pods(pods: &[Arc<Pod>], server: &str, now: Timestamp) -> Vec<ReadyPod> {
    let of_server = |pod: &&Arc<Pod>| pod.labels().get(SERVER_LABEL).is_some_and(|label| label == server);
    let ready = |pod: &Arc<Pod>| {
        let ready_for = ready_for(pod, now)?;
        Some(ReadyPod { pod: rollout::Pod { name: pod.name_any(), uid: pod.uid()? }, ready_for })
    };
    let mut ready: Vec<_> = pods.iter().filter(of_server).filter_map(ready).collect();
    // Messages name the first pods.
    ready.sort_unstable_by(|a, b| a.pod.name.cmp(&b.pod.name));
    ready
}

/// Returns the time since the pod became Ready; `None` if the pod is not Ready, or is being deleted.
fn ready_for(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let ready = ready_condition(pod)?;
    let since = ready.last_transition_time.as_ref().or(pod.metadata.creation_timestamp.as_ref());
    pod.meta().deletion_timestamp.is_none().then(|| elapsed(since, now))
}

/// Returns the condition of a pod that is Ready; `None` if it is not Ready.
pub(crate) fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the time from `since` to `now`; zero if `since` is unknown or later.
pub(crate) fn elapsed(since: Option<&Time>, now: Timestamp) -> Duration {
    since.and_then(|since| now.duration_since(since.0).try_into().ok()).unwrap_or_default()
}

/// Returns the failures of replicas for the message of a condition, each failure once. The length is bounded, whatever
/// the number of replicas is, because the API server refuses a message with more than 32,768 characters.
pub(crate) fn causes(failures: &[(String, Failure)]) -> String {
    let mut groups: Vec<(&Failure, Vec<&str>)> = Vec::new();
    for (pod, failure) in failures {
        match groups.iter_mut().find(|(known, _)| *known == failure) {
            Some((_, pods)) => pods.push(pod),
            None => groups.push((failure, vec![pod.as_str()])),
        }
    }
    let cause = |(failure, pods): &(&Failure, Vec<&str>)| {
        let failure: String = failure.to_string().chars().take(MAX_FAILURE).collect();
        format!("{}: {failure}", names(pods))
    };
    let mut causes: Vec<_> = groups.iter().take(MAX_NAMED).map(cause).collect();
    let others: usize = groups.iter().skip(MAX_NAMED).map(|(_, pods)| pods.len()).sum();
    if others > 0 {
        causes.push(format!("and {others} more replicas, for other reasons"));
    }
    causes.join("; ")
}

/// Returns the first names, and the number of the others.
pub(crate) fn names<T: AsRef<str>>(pods: &[T]) -> String {
    let named: Vec<&str> = pods.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    match pods.len().saturating_sub(MAX_NAMED) {
        0 => named.join(", "),
        others => format!("{} and {others} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The maximum length of the message of a condition, in characters.
    const MAX_MESSAGE: usize = 32_768;

    fn failures(number: usize, message: impl Fn(usize) -> String) -> Vec<(String, Failure)> {
        let pod = |number| format!("policy-server-{}-{number}", "x".repeat(200));
        (0..number).map(|number| (pod(number), Failure::new("CacheError", message(number)))).collect()
    }

    #[test]
    fn equal_failures_are_one_cause_with_the_first_pods() {
        let failure = |reason: &'static str| Failure::new(reason, "no such host");
        let mut two = vec![("a".to_owned(), failure("PullError")), ("b".to_owned(), failure("CacheError"))];
        assert_eq!(causes(&two), "a: PullError: no such host; b: CacheError: no such host");
        two.extend(["c", "d", "e", "f", "g", "h"].map(|pod| (pod.to_owned(), failure("PullError"))));
        assert_eq!(causes(&two), "a, c, d, e, f and 2 more: PullError: no such host; b: CacheError: no such host");
    }

    #[test]
    fn the_message_about_500_replicas_is_bounded() {
        let same = causes(&failures(500, |_| "m".repeat(40_000)));
        let different = causes(&failures(500, |number| format!("{number} {}", "m".repeat(40_000))));
        assert!(same.contains("and 495 more: CacheError: mmm"), "{same}");
        assert!(different.ends_with("; and 495 more replicas, for other reasons"), "{different}");
        for message in [same, different] {
            assert!(message.chars().count() < MAX_MESSAGE / 2, "{}", message.len());
        }
    }

    #[test]
    fn a_replica_that_serves_for_another_reason_has_a_warning() {
        let report = |ready: &str, reason: &str| {
            let mut item = proviso_crds::fixtures::replica("a", "u", ready, reason);
            item["message"] = json!("details");
            replica(&serde_json::from_value(item).unwrap())
        };
        let restricted = Failure::new("LoadedBefore", "details");
        for (ready, reason, result, warning) in [
            ("True", "Loaded", Some(Ok(())), None),
            ("True", "LoadedBefore", Some(Ok(())), Some(restricted.clone())),
            ("False", "LoadedBefore", Some(Err(restricted)), None),
            ("Unknown", "Loading", None, None),
        ] {
            let report = report(ready, reason);
            assert_eq!((report.result, report.warning), (result, warning), "{ready} {reason}");
        }
    }
}
