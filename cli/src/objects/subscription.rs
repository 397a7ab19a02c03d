//! A subscription.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use proviso_crds::{ConditionType, Conditions as _, PolicySubscriptionSpec, PolicySubscriptionStatus};
use serde::Deserialize;
use serde_json::Value;

use super::error::ObjectError;
use super::fields::{created, field};

/// A `PolicySubscription`.
#[derive(Clone, Debug)]
pub struct SubscriptionObject {
    pub name: SubscriptionName,
    pub uid: String,
    /// `metadata.generation`; 0 for a subscription of a folder, which has no generations.
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub is_being_deleted: bool,
    pub spec: PolicySubscriptionSpec,
    pub status: PolicySubscriptionStatus,
}

/// The name of a subscription with its namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubscriptionName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for SubscriptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl SubscriptionObject {
    /// Reads a `PolicySubscription`.
    ///
    /// # Errors
    /// When its spec or its status is invalid.
    pub fn read(object: &DynamicObject) -> Result<Self, ObjectError> {
        let spec = serde_json::from_value(object.data["spec"].clone());
        Ok(Self {
            name: SubscriptionName { namespace: object.namespace().unwrap_or_default(), name: object.name_any() },
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            created: created(object),
            is_being_deleted: object.metadata.deletion_timestamp.is_some(),
            spec: spec.map_err(|error| ObjectError::Field { field: "spec", error })?,
            status: field(&object.data["status"], "status")?,
        })
    }

    /// Reads a `PolicySubscription` from JSON: the form of the REST API.
    ///
    /// # Errors
    /// When it is no object of Kubernetes, or its spec or its status is invalid.
    pub fn read_json(value: &Value) -> Result<Self, ObjectError> {
        let object = DynamicObject::deserialize(value);
        Self::read(&object.map_err(|error| ObjectError::Field { field: "the subscription", error })?)
    }

    /// Returns a condition by its type.
    #[must_use]
    pub fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.status.conditions.condition(type_)
    }

    /// Returns true if the status is about the newest version of the spec.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        let observed = self.status.observed_generation.unwrap_or(self.generation);
        !self.status.conditions.is_empty() && observed == self.generation
    }
}
