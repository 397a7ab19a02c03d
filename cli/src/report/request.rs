//! The report about a request to a service. Its fields are an interface of this program.

use proviso_core::request::{Explanation, Outcome, ProviderConstraints, TrailEntry};
use serde::Serialize;
use serde_json::{Map, Value};

/// The report of `proviso evaluate`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestReport<'a> {
    /// `APPROVED`, `MODIFIED`, `REJECTED`, `POLICY_CONFLICT` or `FAILED`.
    pub status: &'static str,
    /// The reason why the request is not allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The payload after the last policy that was evaluated.
    pub payload: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_provider: Option<&'a str>,
    #[serde(skip_serializing_if = "ProviderConstraints::is_empty")]
    pub provider_constraints: &'a ProviderConstraints,
    /// The merged constraint of each constrained field: a JSON Schema by field path.
    pub constraints: &'a Map<String, Value>,
    pub trail: &'a [TrailEntry],
    /// The explanation of the field that `--explain` names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation<'a>>,
}

impl<'a> RequestReport<'a> {
    #[must_use]
    pub fn new(outcome: &'a Outcome, explanation: Option<Explanation<'a>>) -> Self {
        Self {
            status: outcome.decision.status(),
            message: outcome.decision.message(),
            payload: &outcome.payload,
            service_provider: outcome.provider.as_deref(),
            provider_constraints: &outcome.provider_constraints,
            constraints: &outcome.constraints,
            trail: &outcome.trail,
            explanation,
        }
    }
}
