//! The status of a revision as its object has it: the parts of this replica, of the leader and of the operator.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::DynamicObject;
use proviso_artifacts::Digest;
use proviso_crds::{ConditionStatus, ConditionType, Conditions as _, ModuleStatus, ReplicaStatus};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The reported status of a revision.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// `metadata.resourceVersion`: of one object the larger one is newer. 0 if it is no number.
    pub version: u64,
    pub replica: Option<ReplicaStatus>,
    pub initialized: Option<Condition>,
    /// The modules that the leader fetched, by the references in the spec, without those that cannot be read.
    pub modules: BTreeMap<String, Digest>,
    /// Whether the operator says that this revision decides requests.
    pub is_live: bool,
    pub is_served_by_others: bool,
}

impl Reported {
    pub(super) fn read(object: &DynamicObject, pod_name: &str) -> Self {
        let status = &object.data["status"];
        Self {
            version: object.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0),
            replica: item(&status["replicas"], "name", pod_name),
            initialized: item(&status["conditions"], "type", ConditionType::Initialized.as_str()),
            modules: status["modules"].as_array().into_iter().flatten().filter_map(module).collect(),
            is_live: item::<Condition>(&status["conditions"], "type", ConditionType::Live.as_str())
                .is_some_and(|live| live.status == ConditionStatus::True.as_str()),
            is_served_by_others: status["replicas"]
                .as_array()
                .is_some_and(|replicas| replicas.iter().any(|it| it["name"] != pod_name && it["ready"] == "True")),
        }
    }

    /// Returns the facts that decide what is served, or what others may expect of this replica.
    pub(super) fn stage(&self) -> (bool, bool, bool) {
        (self.is_initialized(), self.is_live, self.is_served_by_others)
    }

    /// Returns whether a leader has prepared the revision for all replicas.
    pub(super) fn is_initialized(&self) -> bool {
        self.initialized.as_slice().is_true(ConditionType::Initialized)
    }
}

fn module(item: &Value) -> Option<(String, Digest)> {
    let module: ModuleStatus = serde_json::from_value(item.clone()).ok()?;
    Some((module.module, module.digest.parse().ok()?))
}

/// Returns the item of a list map with this key; `None` if it cannot be read.
fn item<T: DeserializeOwned>(list: &Value, key: &str, value: &str) -> Option<T> {
    let item = list.as_array()?.iter().find(|item| item[key] == value)?;
    serde_json::from_value(item.clone()).ok()
}
