//! The outcome of a chain, and the trail of what each policy did.

use serde::Serialize;
use serde_json::{Map, Value};

use super::limits::memory_bytes;
use super::path::{FieldPath, shorten};
use super::policy::{Level, RequestPolicy, RevisionId};
use super::provider::ProviderConstraints;
use crate::failure::Failure;

/// The outcome of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub decision: Decision,
    /// The payload after the last policy that was evaluated. It satisfies all constraints if the request is allowed.
    pub payload: Value,
    /// The service provider that the policies chose.
    pub provider: Option<String>,
    pub provider_constraints: ProviderConstraints,
    /// The merged constraint of each constrained field: a JSON Schema by field path.
    pub constraints: Map<String, Value>,
    /// The policies that cover the request and were evaluated, in their order.
    pub trail: Vec<TrailEntry>,
}

/// The decision of a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The request is allowed as it is.
    Approved,
    /// The request is allowed, and policies changed its payload.
    Modified,
    /// A policy rejects the request, or the caller's value of a field violates the constraint of a policy.
    Rejected {
        policy: RevisionId,
        reason: String,
        /// The field whose constraint the request violates; `None` if the policy rejects the request itself.
        field: Option<FieldPath>,
    },
    /// The results of two policies exclude each other.
    Conflict(Conflict),
    /// A policy could not be evaluated, or its result cannot be used.
    Failed { policy: RevisionId, failure: Failure },
}

/// Two policies whose results exclude each other. Both may be the same policy, if its result contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Policy Conflict Error: {policy} conflicts with {other} on {}: {reason}", place_of(.field.as_ref()))]
pub struct Conflict {
    /// The policy that was evaluated later.
    pub policy: RevisionId,
    /// The policy that was evaluated earlier.
    pub other: RevisionId,
    /// The constrained field; `None` for the service provider.
    pub field: Option<FieldPath>,
    pub reason: String,
}

/// The part that one policy had in an outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrailEntry {
    #[serde(flatten)]
    pub revision: RevisionId,
    pub level: Level,
    pub priority: u32,
    /// True if the result of the policy is undefined. The policy then has no effect.
    pub is_undefined: bool,
    /// The fields that the policy changed.
    pub patched: Vec<FieldPath>,
    /// The constraints of the policy.
    pub constrained: Vec<ConstrainedField>,
    /// The service provider that the policy chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "ProviderConstraints::is_empty")]
    pub provider_constraints: ProviderConstraints,
}

/// A constraint of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConstrainedField {
    pub field: FieldPath,
    /// A JSON Schema.
    pub constraint: Value,
    /// True if the constraint allows only one value, or no value.
    pub is_lock: bool,
}

impl Decision {
    /// Returns true if the request is allowed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Approved | Self::Modified)
    }

    /// Returns the status as the published API of the DCM project has it, and `FAILED` for a policy that could not be evaluated.
    #[must_use]
    pub fn status(&self) -> &'static str {
        match self {
            Self::Approved => "APPROVED",
            Self::Modified => "MODIFIED",
            Self::Rejected { .. } => "REJECTED",
            Self::Conflict(_) => "POLICY_CONFLICT",
            Self::Failed { .. } => "FAILED",
        }
    }

    /// Returns the reason why the request is not allowed, for people. It names the policy, and the field if there is one.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        match self {
            Self::Approved | Self::Modified => None,
            Self::Rejected { policy, reason, field: None } if reason.is_empty() => {
                Some(format!("{policy} rejects the request"))
            }
            Self::Rejected { policy, reason, field: None } => Some(format!("{policy} rejects the request: {reason}")),
            Self::Rejected { policy, reason, field: Some(field) } => Some(format!(
                "the field `{}` violates the constraint of {policy}: {reason}",
                shorten(&field.to_string())
            )),
            Self::Conflict(conflict) => Some(conflict.to_string()),
            Self::Failed { policy, failure } => Some(format!("{policy} failed: {failure}")),
        }
    }

    /// Returns the same reason for logs and statuses, which must not have values of the payload: without the reason why a value
    /// violates a constraint, because it contains the value.
    #[must_use]
    pub fn message_without_values(&self) -> Option<String> {
        match self {
            Self::Rejected { policy, field: Some(field), .. } => {
                Some(format!("the field `{}` violates the constraint of {policy}", shorten(&field.to_string())))
            }
            Self::Conflict(Conflict { policy, other, field, .. }) => {
                let place = place_of(field.as_ref());
                Some(format!("Policy Conflict Error: {policy} conflicts with {other} on {place}"))
            }
            _ => self.message(),
        }
    }
}

/// Returns the place of a conflict for people.
fn place_of(field: Option<&FieldPath>) -> String {
    field.map_or_else(
        || "the service provider".to_owned(),
        |field| format!("the field `{}`", shorten(&field.to_string())),
    )
}

impl Outcome {
    /// Returns the estimated memory of the outcome, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let constrained = self.trail.iter().flat_map(|entry| &entry.constrained);
        let constraints = self.constraints.values().chain(constrained.map(|it| &it.constraint));
        let patched = self.trail.iter().flat_map(|entry| &entry.patched);
        memory_bytes(&self.payload)
            + constraints.map(memory_bytes).sum::<usize>()
            + patched.map(FieldPath::size).sum::<usize>()
    }
}

impl TrailEntry {
    pub(super) fn new(policy: &RequestPolicy) -> Self {
        Self {
            revision: policy.revision.clone(),
            level: policy.level,
            priority: policy.priority,
            is_undefined: false,
            patched: Vec::new(),
            constrained: Vec::new(),
            provider: None,
            provider_constraints: ProviderConstraints::default(),
        }
    }
}

impl ConstrainedField {
    pub(super) fn new(field: FieldPath, constraint: Value) -> Self {
        let is_lock = constraint == Value::Bool(false) || constraint.get("const").is_some();
        Self { field, constraint, is_lock }
    }
}
