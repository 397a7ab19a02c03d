//! A revision of a policy.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use proviso_crds::{ConditionType, Conditions as _, PolicyRevisionStatus, RevisedPolicy};
use serde_json::Value;

use super::error::ObjectError;
use super::fields::{created, field};

/// A `PolicyRevision`.
#[derive(Clone, Debug)]
pub struct RevisionObject {
    pub name: String,
    pub policy_uid: String,
    pub generation: i64,
    pub policy_server: String,
    /// `spec.enabled`: true if the policy server loads the revision.
    pub is_enabled: bool,
    pub created: Option<Timestamp>,
    /// The spec of the policy at that generation.
    pub data: Value,
    pub status: PolicyRevisionStatus,
}

impl RevisionObject {
    /// Reads a `PolicyRevision` of a cluster.
    ///
    /// # Errors
    /// When its reference to a policy or its status is invalid.
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

    /// Returns a condition of the revision.
    #[must_use]
    pub fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.status.conditions.condition(type_)
    }

    /// Returns true if the revision answers requests.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.status.conditions.is_true(ConditionType::Live)
    }

    /// Returns true if the revision answers requests, or answered them before.
    #[must_use]
    pub fn was_ever_live(&self) -> bool {
        self.condition(ConditionType::Live).is_some()
    }
}
