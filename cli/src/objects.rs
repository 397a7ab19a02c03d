//! Policies and revisions as the API server has them. Read here and not by the client: one object that makes no sense,
//! such as one of another version of Proviso, must not keep the others from being shown. Specs stay as they are, so that
//! nothing of them is lost in a comparison.

mod experiment;
mod served;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use proviso_core::PolicyId;
use proviso_core::experiment::etag;
use proviso_core::policy_id::PolicyIdError;
use proviso_crds::names::ROLLBACK_TO;
use proviso_crds::{ConditionType, Conditions as _, PolicyKind, PolicyRevisionStatus, PolicyStatus, RevisedPolicy};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use experiment::ExperimentObject;

/// A Policy or a `ClusterPolicy`.
#[derive(Clone, Debug)]
pub struct PolicyObject {
    pub id: PolicyId,
    pub uid: String,
    /// Of the newest version: what a commit replaces.
    pub etag: String,
    /// 0 where it is not told.
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub is_being_deleted: bool,
    pub rollback_to: Option<String>,
    pub spec: Value,
    pub status: PolicyStatus,
}

/// A `PolicyRevision`.
#[derive(Clone, Debug)]
pub struct RevisionObject {
    pub name: String,
    pub policy_uid: String,
    pub generation: i64,
    pub policy_server: String,
    /// Whether the policy server has it loaded.
    pub is_enabled: bool,
    pub created: Option<Timestamp>,
    /// The policy's spec at that generation.
    pub data: Value,
    pub status: PolicyRevisionStatus,
}

/// Why an object cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error(transparent)]
    Name(#[from] PolicyIdError),
    #[error("{field}: {error}")]
    Field { field: &'static str, error: serde_json::Error },
}

impl PolicyObject {
    /// # Errors
    /// When its name or its status makes no sense.
    pub fn read(object: &DynamicObject) -> Result<Self, ObjectError> {
        let (uid, generation) = (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default());
        Ok(Self {
            id: PolicyId::new(object.namespace().as_deref(), &object.name_any())?,
            etag: etag(&uid, generation),
            uid,
            generation,
            created: created(object),
            is_being_deleted: object.metadata.deletion_timestamp.is_some(),
            rollback_to: object.annotations().get(ROLLBACK_TO).cloned(),
            spec: object.data["spec"].clone(),
            status: field(&object.data["status"], "status")?,
        })
    }

    #[must_use]
    pub fn kind(&self) -> PolicyKind {
        if self.id.namespace().is_some() { PolicyKind::Policy } else { PolicyKind::ClusterPolicy }
    }

    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.spec["enabled"].as_bool().unwrap_or(true)
    }

    #[must_use]
    pub fn policy_server(&self) -> &str {
        self.spec["policyServer"].as_str().unwrap_or("default")
    }

    /// A generation, and what it is to this policy.
    #[must_use]
    pub fn name_of(&self, generation: i64) -> String {
        if generation == 0 {
            return self.id.to_string();
        }
        let mut names = Vec::new();
        if self.status.live_generation == Some(generation) {
            names.push("live");
        }
        if self.generation == generation {
            names.push("newest");
        }
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        format!("{} generation {generation}{names}", self.id)
    }

    /// The generation that the status is about; none where nobody has written one.
    #[must_use]
    pub fn observed_generation(&self) -> Option<i64> {
        self.status.conditions.iter().filter_map(|condition| condition.observed_generation).max()
    }
}

impl RevisionObject {
    /// # Errors
    /// When its reference to a policy or its status makes no sense.
    pub fn read(object: &DynamicObject) -> Result<Self, ObjectError> {
        let spec = &object.data["spec"];
        let policy = serde_json::from_value::<RevisedPolicy>(spec["policyRef"].clone());
        let policy = policy.map_err(|error| ObjectError::Field { field: "spec.policyRef", error })?;
        Ok(Self {
            name: object.name_any(),
            policy_uid: policy.uid,
            generation: policy.generation,
            policy_server: spec["policyServer"].as_str().unwrap_or_default().to_owned(),
            is_enabled: spec["enabled"].as_bool().unwrap_or_default(),
            created: created(object),
            data: spec["data"].clone(),
            status: field(&object.data["status"], "status")?,
        })
    }

    #[must_use]
    pub fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.status.conditions.condition(type_)
    }

    /// Whether requests are answered by it.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.status.conditions.is_true(ConditionType::Live)
    }

    /// Whether requests are or were answered by it.
    #[must_use]
    pub fn was_ever_live(&self) -> bool {
        self.condition(ConditionType::Live).is_some()
    }
}

fn created(object: &DynamicObject) -> Option<Timestamp> {
    object.creation_timestamp().map(|time| time.0)
}

fn field<T: DeserializeOwned + Default>(value: &Value, field: &'static str) -> Result<T, ObjectError> {
    if value.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(value.clone()).map_err(|error| ObjectError::Field { field, error })
}

#[cfg(test)]
pub mod tests {
    //! Objects for the tests of this crate.

    use super::*;
    use proviso_crds::ConditionStatus;
    use serde_json::json;

    pub use super::experiment::tests::{experiment, previewing};

    pub const NOW: &str = "2026-11-21T10:00:00Z";

    /// The Policy `labels` of the namespace `team` at this generation.
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

    /// Its status, as the operator writes it for a generation that is live.
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

    /// Its status for a generation that failed while another is live.
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

    pub fn condition(name: &str, status: &str, reason: &str, message: &str, generation: i64) -> Value {
        json!({
            "type": name, "status": status, "reason": reason, "message": message, "observedGeneration": generation,
            "lastTransitionTime": "2026-11-21T09:20:00Z",
        })
    }

    /// The spec of a policy that demands this label.
    pub fn spec(label: &str) -> Value {
        json!({
            "policyServer": "default", "enabled": true, "settings": {"label": label},
            "program": {"cel": {"validations": [{"expression": "params.label in object.metadata.labels"}]}},
            "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
        })
    }

    /// A revision of it that demands this label.
    pub fn revision(generation: i64, label: &str, enabled: bool, conditions: &[Value]) -> RevisionObject {
        let policy =
            json!({"kind": "Policy", "namespace": "team", "name": "labels", "uid": "u", "generation": generation});
        let object = json!({
            "metadata": {"name": format!("ns.team.labels-{generation}"), "creationTimestamp": "2026-11-21T09:20:00Z"},
            "spec": {"policyServer": "default", "policyRef": policy, "enabled": enabled, "data": spec(label)},
            "status": {"conditions": conditions},
        });
        RevisionObject::read(&serde_json::from_value(object).unwrap()).unwrap()
    }

    /// What a revision says of itself while it is, or after it was, live.
    pub fn live(status: &str, generation: i64) -> [Value; 2] {
        [
            condition("Initialized", "True", "Prepared", "", generation),
            condition("Live", status, "Live", "", generation),
        ]
    }

    /// The revision with what a replica says about it.
    pub fn with_replica(
        mut revision: RevisionObject,
        pod: &str,
        ready: ConditionStatus,
        reason: &str,
        message: &str,
    ) -> RevisionObject {
        let replica = json!({
            "name": pod, "podUID": format!("uid-of-{pod}"), "serverVersion": "0.1.0", "ready": ready, "reason": reason,
            "message": message, "lastTransitionTime": "2026-11-21T09:30:00Z",
        });
        revision.status.replicas.push(serde_json::from_value(replica).unwrap());
        revision
    }

    #[test]
    fn an_object_that_makes_no_sense_names_its_field() {
        let object = json!({
            "metadata": {"name": "a"}, "spec": {}, "status": {"phase": "Sleeping"},
        });
        let error = PolicyObject::read(&serde_json::from_value(object.clone()).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("status: unknown variant"), "{error}");
        let error = RevisionObject::read(&serde_json::from_value(object).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("spec.policyRef: "), "{error}");
    }

    #[test]
    fn a_policy_that_nobody_has_looked_at_is_read() {
        let policy = policy(1, &Value::Null);
        assert_eq!((policy.observed_generation(), policy.status.phase), (None, None));
        assert_eq!(
            (policy.id.as_str(), policy.kind(), policy.is_enabled()),
            ("ns.team.labels", PolicyKind::Policy, true)
        );
    }
}
