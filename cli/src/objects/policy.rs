//! A policy.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use proviso_core::PolicyId;
use proviso_core::experiment::etag;
use proviso_crds::names::ROLLBACK_TO;
use proviso_crds::{ConditionStatus, ConditionType, Conditions as _, PolicyKind, PolicyStatus};
use serde_json::Value;

use super::error::ObjectError;
use super::fields::{created, field};

/// A `Policy` or a `ClusterPolicy`.
#[derive(Clone, Debug)]
pub struct PolicyObject {
    pub id: PolicyId,
    pub uid: String,
    /// The etag of the newest version, which a commit replaces.
    pub etag: String,
    /// `metadata.generation`; 0 for a policy of the REST API, which has no generations.
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub is_being_deleted: bool,
    /// The annotation that requests a rollback; `None` if no request is pending.
    pub rollback_to: Option<String>,
    /// The labels; empty for a policy of the REST API, which does not show them.
    pub labels: BTreeMap<String, String>,
    /// The annotations; without those of Proviso and kubectl for a policy of the REST API.
    pub annotations: BTreeMap<String, String>,
    /// The field managers of the policy, without those of its status; empty for a policy of the REST API.
    pub managers: Vec<String>,
    pub spec: Value,
    pub status: PolicyStatus,
}

impl PolicyObject {
    /// Reads a `Policy` or a `ClusterPolicy` of a cluster.
    ///
    /// # Errors
    /// When its name or its status is invalid.
    pub fn read(object: &DynamicObject) -> Result<Self, ObjectError> {
        let (uid, generation) = (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default());
        let managers = object.managed_fields().iter().filter(|entry| entry.subresource.is_none());
        Ok(Self {
            id: PolicyId::new(object.namespace().as_deref(), &object.name_any())?,
            etag: etag(&uid, generation),
            uid,
            generation,
            created: created(object),
            is_being_deleted: object.metadata.deletion_timestamp.is_some(),
            rollback_to: object.annotations().get(ROLLBACK_TO).cloned(),
            labels: object.labels().clone(),
            annotations: object.annotations().clone(),
            managers: managers.filter_map(|entry| entry.manager.clone()).collect(),
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

    /// Returns true for a policy with `spec.configuration`: it configures components, and no policy server evaluates it.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        self.spec["configuration"].is_object()
    }

    /// Returns the name of the policy server; `None` for a policy that no policy server evaluates.
    #[must_use]
    pub fn policy_server(&self) -> Option<&str> {
        (!self.is_configuration()).then(|| self.spec["policyServer"].as_str().unwrap_or("default"))
    }

    /// Returns the name of a generation of this policy, such as `ns.team.labels generation 2 (live, newest)`.
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

    /// Returns the generation that the status is about; `None` if the operator has written no status yet.
    #[must_use]
    pub fn observed_generation(&self) -> Option<i64> {
        // The operator may refuse a rollback before it writes the other conditions of a generation.
        let of_rollout =
            |condition: &&Condition| ConditionType::parse(&condition.type_) != Some(ConditionType::RolledBack);
        self.status.conditions.iter().filter(of_rollout).filter_map(|condition| condition.observed_generation).max()
    }

    /// Returns the condition that the last rollback of the newest generation was refused; `None` if it was not refused.
    #[must_use]
    pub fn refused_rollback(&self) -> Option<&Condition> {
        let is_refusal = |condition: &&Condition| {
            condition.status == ConditionStatus::False.as_str()
                && condition.observed_generation == Some(self.generation)
        };
        self.status.conditions.condition(ConditionType::RolledBack).filter(is_refusal)
    }
}
