//! The status of a revision: the parts of this replica, of the leader and of the operator.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::DynamicObject;
use proviso_artifacts::Digest;
use proviso_crds::{ConditionStatus, ConditionType, Conditions as _, ModuleStatus, ReplicaStatus};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::pod::PodId;

/// The reported status of a revision.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// `metadata.resourceVersion`, which changes with each change of the object.
    pub resource_version: Option<String>,
    /// `metadata.resourceVersion` as a number, which grows with each change of the object. 0 if it is not a number.
    pub version: u64,
    pub replica: Option<ReplicaStatus>,
    pub initialized: Option<Condition>,
    /// The digests that the leader has pinned, by the references in the spec. Unreadable items are left out.
    pub modules: BTreeMap<String, Digest>,
    /// True if the operator has marked this revision as live.
    pub is_live: bool,
    /// True if the revision is live, or has been live before.
    pub was_live: bool,
    /// The pods whose replicas report the revision as ready. A pod may have been replaced or lost since.
    pub served_by: BTreeSet<PodId>,
}

impl Reported {
    pub(super) fn read(object: &DynamicObject, pod_name: &str) -> Self {
        let status = &object.data["status"];
        let resource_version = object.metadata.resource_version.clone();
        let live = item::<Condition>(&status["conditions"], "type", ConditionType::Live.as_str());
        Self {
            version: resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0),
            resource_version,
            replica: item(&status["replicas"], "name", pod_name),
            initialized: item(&status["conditions"], "type", ConditionType::Initialized.as_str()),
            modules: status["modules"].as_array().into_iter().flatten().filter_map(module).collect(),
            is_live: live.as_ref().is_some_and(|live| live.status == ConditionStatus::True.as_str()),
            was_live: live.is_some(),
            served_by: status["replicas"].as_array().into_iter().flatten().filter_map(serving_pod).collect(),
        }
    }

    /// Returns the facts that the table and the readiness of this replica depend on.
    pub(super) fn serving_facts(&self) -> (bool, bool, bool, Option<&Condition>, &BTreeSet<PodId>) {
        (self.is_initialized(), self.is_live, self.was_live, self.failure(), &self.served_by)
    }

    /// Returns the condition of a revision that the leader could not prepare; `None` for another revision.
    pub(super) fn failure(&self) -> Option<&Condition> {
        self.initialized.as_ref().filter(|initialized| initialized.status == ConditionStatus::False.as_str())
    }

    /// Returns true if a leader has prepared the revision for all replicas.
    pub(super) fn is_initialized(&self) -> bool {
        self.initialized.as_slice().is_true(ConditionType::Initialized)
    }
}

/// Returns the pod of a replica that reports the revision as ready; `None` for another item.
fn serving_pod(item: &Value) -> Option<PodId> {
    let text = |field: &str| item[field].as_str().map(ToOwned::to_owned);
    if item["ready"] != ConditionStatus::True.as_str() {
        return None;
    }
    Some(PodId { name: text("name")?, uid: text("podUID")? })
}

fn module(item: &Value) -> Option<(String, Digest)> {
    let module: ModuleStatus = serde_json::from_value(item.clone()).ok()?;
    Some((module.module, module.digest.parse().ok()?))
}

/// Returns the item of a list map with this key; `None` if it is missing or unreadable.
fn item<T: DeserializeOwned>(list: &Value, key: &str, value: &str) -> Option<T> {
    let item = list.as_array()?.iter().find(|item| item[key] == value)?;
    serde_json::from_value(item.clone()).ok()
}
