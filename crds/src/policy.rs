//! `Policy` and `ClusterPolicy`: one body, two scopes.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::admission::Admission;
use crate::program::Program;

/// What decides, with which settings, and about what.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(group = "proviso.dev", version = "v1alpha1", kind = "Policy", namespaced, category = "proviso")]
#[serde(rename_all = "camelCase")]
pub struct PolicySpec {
    /// The name of the PolicyServer that evaluates this policy. Default: `default`.
    #[serde(default = "default_policy_server")]
    pub policy_server: String,
    /// What decides: exactly one of `wasm`, `rego`, `cel` and `group`.
    pub program: Program,
    /// Whether the policy takes part at all. `false` takes it out of every path and keeps its history: the
    /// break-glass switch. Default: true.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// The program's settings: `input.parameters` for Rego, `params` for CEL, `settings` for wasm. At most
    /// 256 KiB of JSON.
    #[serde(default)]
    #[schemars(schema_with = "any_object")]
    pub settings: Map<String, Value>,
    /// The Kubernetes resources that the program may read. None by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// Patterns of the host capabilities that the program may use, such as `oci/v1/*`. None by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_capabilities: Vec<String>,
    /// How long one evaluation may take, in seconds: 1 to 30. Default: the policy server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_eval_seconds: Option<u32>,
    /// Decide about requests to the Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// How many old revisions are kept for rollback. Default: 10.
    #[serde(default = "revision_history_limit")]
    pub revision_history_limit: u32,
}

/// The spec of a ClusterPolicy: that of a Policy.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(group = "proviso.dev", version = "v1alpha1", kind = "ClusterPolicy", category = "proviso")]
#[serde(transparent)]
pub struct ClusterPolicySpec(pub PolicySpec);

/// A kind of Kubernetes objects that a program may read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    /// Group and version, such as `apps/v1`.
    pub api_version: String,
    pub kind: String,
}

fn default_policy_server() -> String {
    "default".to_owned()
}

fn enabled() -> bool {
    true
}

fn revision_history_limit() -> u32 {
    10
}

/// An object of any shape.
pub(crate) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
