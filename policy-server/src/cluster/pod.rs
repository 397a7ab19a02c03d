//! The pods of the policy server, as far as readiness depends on them.

use k8s_openapi::api::core::v1::Pod;

/// The identity of a pod. The uid differs from that of an earlier pod of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodId {
    pub name: String,
    pub uid: String,
}

/// The last observed state of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedPod {
    pub uid: String,
    /// True if the pod is Ready and not being deleted, so that a Service sends requests to it.
    pub is_ready: bool,
}

impl ObservedPod {
    pub(super) fn read(pod: &Pod) -> Self {
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            is_ready: is_ready && pod.metadata.deletion_timestamp.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_ready_pod_that_is_not_being_deleted_counts_as_ready() {
        let conditions = |status: &str| json!({"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": status}]});
        let alive = json!({"uid": "u"});
        let deleted = json!({"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (metadata, status, is_ready) in [
            (&alive, conditions("True"), true),
            (&alive, conditions("False"), false),
            (&alive, conditions("Unknown"), false),
            (&alive, json!({}), false),
            (&deleted, conditions("True"), false),
        ] {
            let pod = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
            assert_eq!(ObservedPod::read(&pod), ObservedPod { uid: "u".to_owned(), is_ready }, "{metadata} {status}");
        }
    }
}
