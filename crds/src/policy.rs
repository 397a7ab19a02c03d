//! `Policy` and `ClusterPolicy`: one body, two scopes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::admission::{Admission, Mode};
use crate::program::{ContextAwareResource, Program, any_object};

/// What decides, with which settings, and about what.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "Policy",
    namespaced,
    category = "proviso",
    shortname = "pvp",
    status = "PolicyStatus",
    doc = "A policy about the requests of its own namespace.",
    validation = Rule::new("self.metadata.name.size() <= 150").message("a policy's name has at most 150 characters"),
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.policyServer"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Live", type_ = "integer", json_path = ".status.liveGeneration"),
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.replicas.summary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("has(self.admission)").message("say in `admission` which requests the policy decides about")
)]
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
    #[schemars(range(min = 1, max = 30))]
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
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "ClusterPolicy",
    category = "proviso",
    shortname = "pvcp",
    status = "PolicyStatus",
    doc = "A policy about the requests of the whole cluster.",
    validation = Rule::new("self.metadata.name.size() <= 150").message("a policy's name has at most 150 characters"),
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.policyServer"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Live", type_ = "integer", json_path = ".status.liveGeneration"),
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.replicas.summary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(transparent)]
pub struct ClusterPolicySpec(pub PolicySpec);

/// Where a policy stands.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// In one word; the conditions say why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PolicyPhase>,
    /// The generation that answers requests; none before the first one does, or while the policy is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_generation: Option<i64>,
    /// `Scheduled`: a revision of the newest generation exists. `Initialized`: its program was fetched, compiled and
    /// accepted its settings. `Ready`: every replica serves it. `Live`: requests are answered by it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// How many replicas of the policy server serve the newest generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    /// The mode of the live generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// Where a policy stands, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PolicyPhase {
    /// No generation answers yet.
    Pending,
    /// A generation answers, and a newer one is on its way.
    Updating,
    /// The newest generation answers.
    Active,
    /// The newest generation does not work; the one before it, if there is one, goes on.
    Failed,
    /// The policy is disabled.
    Disabled,
}

impl PolicyPhase {
    pub const ALL: [Self; 5] = [Self::Pending, Self::Updating, Self::Active, Self::Failed, Self::Disabled];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Updating => "Updating",
            Self::Active => "Active",
            Self::Failed => "Failed",
            Self::Disabled => "Disabled",
        }
    }
}

/// Replicas of a policy server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ReplicaCount {
    pub ready: u32,
    pub total: u32,
    /// `ready/total`, for the column of `kubectl get`.
    pub summary: String,
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
