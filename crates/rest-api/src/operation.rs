//! Long-running operations (AIP-151). An operation waits for an effect on a policy or an experiment. Stores keep operations, and
//! the result that was computed first stays the result.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_core::PolicyId;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::error::Error;
use crate::names::ExperimentName;

/// The time for which a store keeps an operation.
pub const OPERATION_LIFETIME: Duration = Duration::from_hours(24);
/// The maximum number of operations that a store keeps.
pub const MAX_OPERATIONS: usize = 1000;
/// The prefix of the types of this API in a `google.protobuf.Any`.
pub(crate) const TYPE: &str = "type.googleapis.com/proviso.v1.";
/// The type of an empty response in a `google.protobuf.Any`.
pub(crate) const EMPTY: &str = "type.googleapis.com/google.protobuf.Empty";

/// The effect of a method that returns an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Effect {
    Create,
    Update,
    Delete,
    StartPreview,
    StopPreview,
    Commit,
}

impl Effect {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Update => "Update",
            Self::Delete => "Delete",
            Self::StartPreview => "StartPreview",
            Self::StopPreview => "StopPreview",
            Self::Commit => "Commit",
        }
    }
}

/// The state of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The operation waits for the named event.
    Running(String),
    Done,
    Failed(Error),
}

/// The effect that an operation waits for, and its target.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AwaitedEffect {
    pub effect: Effect,
    #[serde(deserialize_with = "policy_id")]
    pub policy: PolicyId,
    /// The name of the experiment. `None` means that the operation is about the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// The uid of the awaited object: the policy for a commit, else the target. Another object of the same name does not count.
    pub uid: String,
    /// The version of the awaited object after the effect ([`Meta::version`](crate::Meta::version)).
    pub version: String,
    /// The `start_time` of a start of a preview, or the `stop_time` of a stop. `None` for other effects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Time>,
}

fn policy_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyId, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

impl AwaitedEffect {
    /// Returns the name of the experiment that the operation is about. `None` means that it is about the policy.
    #[must_use]
    pub fn experiment(&self) -> Option<ExperimentName> {
        let name = self.experiment.clone()?;
        Some(ExperimentName { policy: self.policy.clone(), name })
    }

    /// Returns the name of the resource that the operation is about.
    #[must_use]
    pub fn target(&self) -> String {
        self.experiment().map_or_else(|| format!("policies/{}", self.policy), |experiment| experiment.to_string())
    }

    const fn kind(&self) -> &'static str {
        if self.experiment.is_some() { "PolicyExperiment" } else { "Policy" }
    }

    /// Returns the type of the operation's metadata: the name of the method, and `Metadata`.
    fn metadata_type(&self) -> String {
        format!("{TYPE}{}{}Metadata", self.effect.as_str(), self.kind())
    }
}

/// An operation in a store.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredOperation {
    /// The id. It is random, so that a caller cannot guess the ids of the operations of other callers.
    pub id: String,
    pub awaited: AwaitedEffect,
    pub create_time: Time,
    /// The result. `None` means that it has not been computed yet, or that the operation has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<OperationResult>,
    /// For a deletion of an experiment, the deleted resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<Value>,
}

/// An operation in a list, without its result.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationSummary {
    pub id: String,
    pub awaited: AwaitedEffect,
    pub create_time: Time,
    /// True if the operation has a result. An operation without one may have ended: its result is computed when it is read.
    pub is_done: bool,
}

impl OperationSummary {
    #[must_use]
    pub(crate) fn name(&self) -> String {
        format!("operations/{}", self.id)
    }

    /// Returns the fields of a `google.longrunning.Operation` that do not depend on the result.
    #[must_use]
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "name": self.name(),
            "metadata": {
                "@type": self.awaited.metadata_type(), "target": self.awaited.target(), "createTime": self.create_time,
            },
            "done": self.is_done,
        })
    }
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum OperationResult {
    /// The resource, or an empty message, as a `google.protobuf.Any`.
    Response(Value),
    /// The error, as a `google.rpc.Status`.
    Error(Value),
}

impl StoredOperation {
    /// Returns a new operation with a random id and without a result.
    #[must_use]
    pub fn new(awaited: AwaitedEffect, create_time: Time, deleted: Option<Value>) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        Self { id, awaited, create_time, result: None, deleted }
    }

    /// Returns the operation without its result.
    #[must_use]
    pub fn summary(&self) -> OperationSummary {
        OperationSummary {
            id: self.id.clone(),
            awaited: self.awaited.clone(),
            create_time: self.create_time.clone(),
            is_done: self.result.is_some(),
        }
    }

    /// Returns the result of the operation with this progress; `None` while it runs. `resource` is the JSON form of the policy
    /// or the experiment ([`StoredExperiment::to_json`](crate::StoredExperiment::to_json)) after the effect.
    #[must_use]
    pub fn result_of(&self, progress: &Progress, resource: Option<Value>) -> Option<OperationResult> {
        match progress {
            Progress::Running(_) => None,
            Progress::Done => Some(OperationResult::Response(self.response(resource))),
            Progress::Failed(error) => Some(OperationResult::Error(error.to_status())),
        }
    }

    /// Records the result, unless the operation has one already.
    pub fn finish(&mut self, result: OperationResult) {
        if self.result.is_none() {
            self.result = Some(result);
            // The response contains it.
            self.deleted = None;
        }
    }

    fn response(&self, resource: Option<Value>) -> Value {
        match self.deleted.clone().or(resource) {
            Some(mut resource) => {
                resource["@type"] = json!(format!("{TYPE}{}", self.awaited.kind()));
                resource
            }
            None => json!({"@type": EMPTY, "value": {}}),
        }
    }

    /// Returns the operation as a `google.longrunning.Operation`. `waits_for` names the awaited event.
    #[must_use]
    pub(crate) fn to_json(&self, waits_for: Option<&str>) -> Value {
        let mut operation = self.summary().to_json();
        match &self.result {
            None => operation["metadata"]["waitsFor"] = json!(waits_for.unwrap_or_default()),
            Some(OperationResult::Response(response)) => operation["response"] = response.clone(),
            Some(OperationResult::Error(error)) => operation["error"] = error.clone(),
        }
        operation
    }
}

/// Returns true if an operation that was created at `create_time` is not kept any more at the time `now`.
#[must_use]
pub fn has_expired(create_time: Timestamp, now: Timestamp) -> bool {
    create_time.checked_add(OPERATION_LIFETIME).is_ok_and(|end| end <= now)
}

/// An operation of a store, for the limits of the store.
#[derive(Clone, Copy, Debug)]
pub struct OperationRecord {
    pub create_time: Timestamp,
    pub is_done: bool,
    /// True if only its age removes the operation.
    pub is_protected: bool,
    /// The size in bytes.
    pub size: usize,
}

/// Returns the indices of the operations that a store removes: those that have expired, and as many others as exceed
/// [`MAX_OPERATIONS`] or `max_bytes`. The oldest finished ones go first, and then the oldest ones.
#[must_use]
pub fn removable(operations: &[OperationRecord], now: Timestamp, max_bytes: usize) -> Vec<usize> {
    let (mut removed, mut others): (Vec<usize>, Vec<usize>) =
        (0..operations.len()).partition(|index| has_expired(operations[*index].create_time, now));
    others.sort_by_key(|index| (!operations[*index].is_done, operations[*index].create_time));
    let mut count = others.len();
    let mut bytes: usize = others.iter().map(|index| operations[*index].size).sum();
    for index in others {
        if count <= MAX_OPERATIONS && bytes <= max_bytes {
            break;
        }
        if !operations[index].is_protected {
            count -= 1;
            bytes -= operations[index].size;
            removed.push(index);
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::error::Code;

    fn operation(effect: Effect, experiment: Option<&str>) -> StoredOperation {
        let time: Time = serde_json::from_value(json!("2026-11-20T09:14:07Z")).unwrap();
        let awaited = AwaitedEffect {
            effect,
            policy: "cluster.a".parse().unwrap(),
            experiment: experiment.map(ToOwned::to_owned),
            uid: "u".into(),
            version: "3".into(),
            start: (effect == Effect::StartPreview).then(|| time.clone()),
        };
        StoredOperation::new(awaited, time, None)
    }

    #[test]
    fn a_stored_operation_is_read_as_it_was_written() {
        let mut operation = operation(Effect::StartPreview, Some("e"));
        for result in [None, Some(OperationResult::Response(json!({"a": 1}))), Some(OperationResult::Error(json!({})))]
        {
            operation.result = result;
            let json = json!(operation);
            assert_eq!(serde_json::from_value::<StoredOperation>(json.clone()).unwrap(), operation, "{json}");
        }
        assert_eq!(json!(operation)["awaited"]["effect"], "StartPreview");
        let mut malformed = json!(operation);
        malformed["awaited"]["policy"] = json!("nowhere");
        assert!(serde_json::from_value::<StoredOperation>(malformed).is_err());
    }

    #[test]
    fn ids_are_random() {
        let ids: BTreeSet<_> = (0..100).map(|_| operation(Effect::Create, None).id).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())), "{ids:?}");
    }

    #[test]
    fn each_effect_has_the_response_and_metadata_type_that_aip_236_names() {
        for (effect, response) in [
            (Effect::Create, "proviso.v1.PolicyExperiment"),
            (Effect::Update, "proviso.v1.PolicyExperiment"),
            (Effect::Delete, "proviso.v1.PolicyExperiment"),
            (Effect::StartPreview, "proviso.v1.PolicyExperiment"),
            (Effect::StopPreview, "proviso.v1.PolicyExperiment"),
            (Effect::Commit, "google.protobuf.Empty"),
        ] {
            let mut stored = operation(effect, Some("e"));
            let resource = (effect != Effect::Commit).then(|| json!({"name": "policies/cluster.a/experiments/e"}));
            if effect == Effect::Delete {
                stored.deleted.clone_from(&resource);
            }
            let running = stored.to_json(Some("the replicas"));
            assert_eq!((&running["done"], &running["metadata"]["waitsFor"]), (&json!(false), &json!("the replicas")));
            let read = resource.filter(|_| effect != Effect::Delete);
            stored.finish(stored.result_of(&Progress::Done, read).unwrap());
            let done = stored.to_json(None);
            assert_eq!(done["response"]["@type"], format!("type.googleapis.com/{response}"));
            let metadata = format!("type.googleapis.com/proviso.v1.{}PolicyExperimentMetadata", effect.as_str());
            assert_eq!((&done["metadata"]["@type"], &done["done"]), (&json!(metadata), &json!(true)));
            assert_eq!(done["name"], format!("operations/{}", stored.id));
        }
    }

    #[test]
    fn the_first_result_stays() {
        let mut stored = operation(Effect::StartPreview, Some("e"));
        assert_eq!(stored.result_of(&Progress::Running("x".to_owned()), None), None);
        let failed = Progress::Failed(Error::new(Code::Aborted, "SUSPENDED", "stopped"));
        stored.finish(stored.result_of(&failed, None).unwrap());
        stored.finish(stored.result_of(&Progress::Done, Some(json!({}))).unwrap());
        let json = stored.to_json(None);
        assert_eq!((&json["error"]["code"], json.get("response")), (&json!(10), None), "{json}");
    }
}
