//! Objects for the tests of this crate.

use proviso_crds::fixtures::replica;
use proviso_crds::{ConditionStatus, PolicyKind};
use serde_json::{Value, json};

use super::*;

pub use super::experiment::tests::{experiment, previewing};
pub use proviso_crds::fixtures::condition;

pub const NOW: &str = "2026-11-21T10:00:00Z";

/// Returns the `Policy` `labels` in the namespace `team`.
pub fn policy(generation: i64, status: &Value) -> PolicyObject {
    let object = json!({
        "metadata": {
            "name": "labels", "namespace": "team", "uid": "u", "generation": generation,
            "creationTimestamp": "2026-11-09T10:00:00Z",
        },
        "spec": spec("owner"),
        "status": status,
    });
    PolicyObject::read(&serde_json::from_value(object).unwrap()).unwrap()
}

/// Returns the status of a policy whose newest generation is live.
pub fn active(generation: i64) -> Value {
    json!({
        "phase": "Active", "liveGeneration": generation, "mode": "Protect",
        "replicas": {"ready": 2, "total": 2, "summary": "2/2"},
        "conditions": [
            condition("Scheduled", "True", "RevisionCreated", "there is a revision of this generation", generation),
            condition("Initialized", "True", "Prepared", "its program was compiled and accepted its settings", generation),
            condition("Ready", "True", "Loaded", "every Ready replica has loaded it", generation),
            condition("Live", "True", "Live", "requests are answered by it", generation),
        ],
    })
}

/// Returns the status of a policy whose newest generation failed while another generation is live.
pub fn failed(generation: i64, live: i64, reason: &str, message: &str) -> Value {
    json!({
        "phase": "Failed", "liveGeneration": live, "mode": "Protect",
        "replicas": {"ready": 0, "total": 2, "summary": "0/2"},
        "conditions": [
            condition("Scheduled", "True", "RevisionCreated", "there is a revision of this generation", generation),
            condition("Initialized", "False", reason, message, generation),
            condition("Ready", "False", "NotInitialized", "not every Ready replica has loaded it", generation),
            condition("Live", "False", "NotInitialized", &format!("not yet; generation {live} goes on answering"), generation),
        ],
    })
}

/// Returns the spec of a policy that requires this label.
pub fn spec(label: &str) -> Value {
    json!({
        "policyServer": "default", "enabled": true, "settings": {"label": label},
        "program": {"cel": {"validations": [{"expression": "params.label in object.metadata.labels"}]}},
        "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
    })
}

/// Returns a revision of the policy `labels` that requires this label.
pub fn revision(generation: i64, label: &str, enabled: bool, conditions: &[Value]) -> RevisionObject {
    let policy = json!({"kind": "Policy", "namespace": "team", "name": "labels", "uid": "u", "generation": generation});
    let object = json!({
        "metadata": {"name": format!("ns.team.labels-{generation}"), "creationTimestamp": "2026-11-21T09:20:00Z"},
        "spec": {"policyServer": "default", "policyRef": policy, "enabled": enabled, "data": spec(label)},
        "status": {"conditions": conditions},
    });
    RevisionObject::read(&serde_json::from_value(object).unwrap()).unwrap()
}

/// Returns the conditions of a revision that is live (`status` is `True`) or was live (`False`).
pub fn live(status: &str, generation: i64) -> [Value; 2] {
    [condition("Initialized", "True", "Prepared", "", generation), condition("Live", status, "Live", "", generation)]
}

/// Adds the status of a replica to a revision.
pub fn with_replica(
    mut revision: RevisionObject,
    pod: &str,
    ready: ConditionStatus,
    reason: &str,
    message: &str,
) -> RevisionObject {
    let mut replica = replica(pod, &format!("uid-of-{pod}"), ready.as_str(), reason);
    replica["message"] = message.into();
    replica["lastTransitionTime"] = "2026-11-21T09:30:00Z".into();
    replica["message"] = message.into();
    revision.status.replicas.push(serde_json::from_value(replica).unwrap());
    revision
}

#[test]
fn the_error_of_an_invalid_object_names_the_field() {
    let object = json!({
        "metadata": {"name": "a"}, "spec": {}, "status": {"phase": "Sleeping"},
    });
    let error = PolicyObject::read(&serde_json::from_value(object.clone()).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("status: unknown variant"), "{error}");
    let error = RevisionObject::read(&serde_json::from_value(object).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("spec.policyRef: "), "{error}");
}

#[test]
fn a_policy_without_a_status_is_read() {
    let policy = policy(1, &Value::Null);
    assert_eq!((policy.observed_generation(), policy.status.phase), (None, None));
    assert_eq!((policy.id.as_str(), policy.kind(), policy.is_enabled()), ("ns.team.labels", PolicyKind::Policy, true));
}

/// Returns the subscription `collector` in the namespace `team`.
pub fn subscription(generation: i64, status: &Value) -> SubscriptionObject {
    let object = json!({
        "metadata": {
            "name": "collector", "namespace": "team", "uid": "u", "generation": generation,
            "creationTimestamp": "2026-11-09T10:00:00Z",
        },
        "spec": {
            "component": {"kind": "Deployment", "name": "collector"},
            "policies": [{"id": "cluster.memory"}],
            "delivery": {
                "configMap": "collector-policies", "notify": {"exec": {"command": ["/component", "reconfigure"]}},
            },
        },
        "status": status,
    });
    SubscriptionObject::read(&serde_json::from_value(object).unwrap()).unwrap()
}
