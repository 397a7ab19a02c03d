//! The input of a policy, as the ADR and as the published API of the DCM project have it.

use serde::Serialize;
use serde_json::{Map, Value};

use super::provider::ProviderConstraints;

/// The input of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Input<'a> {
    /// The payload as the caller sent it.
    pub original_payload: &'a Value,
    /// The payload after the patches of the policies before.
    pub payload: &'a Value,
    /// The merged constraint of each constrained field: a JSON Schema by field path.
    pub constraints: &'a Map<String, Value>,
    pub user: Option<&'a str>,
    pub tenant: Option<&'a str>,
    pub service_provider: ProviderInput<'a>,
}

/// The service provider in the input of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProviderInput<'a> {
    /// The service provider that policies chose; `None` if there is none.
    pub value: Option<&'a str>,
    pub constraints: ProviderConstraintsInput<'a>,
}

/// The constraints of the service provider in the input of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderConstraintsInput<'a> {
    /// The allowed names; missing if all are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_list: Option<&'a [String]>,
    pub patterns: &'a [String],
}

/// The input of a policy that is written for the published API.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PublishedInput<'a> {
    pub spec: &'a Value,
    /// Empty if no policy has chosen a provider.
    pub provider: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraints: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_provider_constraints: Option<&'a ProviderConstraints>,
}
