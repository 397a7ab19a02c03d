//! The status of a revision: the parts of this replica, of the leader and of the operator.

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
    /// `metadata.resourceVersion`, which grows with each change of the object. 0 if it is not a number.
    pub version: u64,
    pub replica: Option<ReplicaStatus>,
    pub initialized: Option<Condition>,
    /// The digests that the leader has pinned, by the references in the spec. Unreadable items are left out.
    pub modules: BTreeMap<String, Digest>,
    /// True if the operator has marked this revision as live.
    pub is_live: bool,
    /// True if a replica other than this one reports the revision as ready.
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

    /// Returns the facts that the table and the readiness of this replica depend on.
    pub(super) fn serving_facts(&self) -> (bool, bool, bool) {
        (self.is_initialized(), self.is_live, self.is_served_by_others)
    }

    /// Returns true if a leader has prepared the revision for all replicas.
    pub(super) fn is_initialized(&self) -> bool {
        self.initialized.as_slice().is_true(ConditionType::Initialized)
    }
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
