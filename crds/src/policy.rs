//! `Policy` and `ClusterPolicy`. Both have the same fields; a `Policy` is namespaced and a `ClusterPolicy` is cluster-scoped.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::admission::{Admission, Mode};
use crate::configuration::Configuration;
use crate::program::{ContextAwareResource, Program, any_object};
use crate::request::ServiceRequests;

/// The maximum of `revisionHistoryLimit`. An object that an older version admitted may have more: then only this number is kept.
pub const MAX_REVISION_HISTORY: u32 = 50;

/// The spec of a policy: its program, the program's settings, and the requests that it decides about.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "Policy",
    namespaced,
    category = "proviso",
    shortname = "pvp",
    status = "PolicyStatus",
    doc = "A policy that decides about requests in its own namespace, or about requests to services of the tenant of its namespace, or \
           that configures components of its namespace.",
    validation = Rule::new("self.metadata.name.size() <= 150").message("a policy's name has at most 150 characters"),
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.policyServer"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Live", type_ = "integer", json_path = ".status.liveGeneration"),
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.replicas.summary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("[has(self.admission), has(self.request), has(self.configuration)].exists_one(it, it)")
        .message("say in `admission` or in `request` which requests the policy decides about, or in `configuration` what it configures"),
    validation = Rule::new("has(self.program) != has(self.configuration)")
        .message("a policy with `admission` or `request` needs `program`, and a policy with `configuration` has none"),
    validation = Rule::new("has(self.request) == has(oldSelf.request)")
        .message("`request` cannot be added or removed: make another policy, and delete this one"),
    validation = Rule::new("has(self.configuration) == has(oldSelf.configuration)")
        .message("`configuration` cannot be added or removed: make another policy, and delete this one")
)]
#[serde(rename_all = "camelCase")]
pub struct PolicySpec {
    /// The name of the PolicyServer that evaluates this policy. It has no effect on a policy with `configuration`. Default: `default`.
    #[serde(default = "default_policy_server")]
    pub policy_server: String,
    /// The program that evaluates requests: exactly one of `wasm`, `rego`, `cel`, `group` and `requests`. Absent if the policy has
    /// `configuration`.
    #[serde(default, skip_serializing_if = "Program::is_none")]
    pub program: Program,
    /// True if the policy decides requests. False switches the policy off, for example in an emergency, and keeps its revisions.
    /// Default: true.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// The settings of the program. Rego reads them as `input.parameters`, CEL as `params`, and a waPC module gets them as
    /// `settings`. At most 256 KiB as JSON, nested at most 64 levels deep. Default: empty.
    #[serde(default)]
    #[schemars(schema_with = "any_object")]
    pub settings: Map<String, Value>,
    /// The kinds of Kubernetes objects that the program may read: at most 32. A group sets this field on its members instead.
    /// Default: no kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// The host capabilities that the program may use, as names or patterns: `*`, `oci/*`, `oci/v1/*` or `oci/v1/verify`.
    /// Default: no capabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_capabilities: Vec<String>,
    /// The maximum time of one evaluation, in seconds: 1 to 30. For a policy in a namespace, at most
    /// `evaluation.namespacedTimeoutSeconds` of the PolicyServer. Evaluations end at least 0.5 seconds before
    /// `admission.timeoutSeconds`, so that API servers get their answers. Default: `evaluation.timeoutSeconds` of the PolicyServer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_eval_seconds: Option<u32>,
    /// The requests to the Kubernetes API that the policy decides about, and how its verdicts are enforced. A policy has exactly one of
    /// `admission`, `request` and `configuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// The requests to services that the policy decides about, and the place of the policy in their chain. A policy has exactly one of
    /// `admission`, `request` and `configuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<ServiceRequests>,
    /// A part of the configuration of components, which PolicySubscriptions select. A policy has exactly one of `admission`, `request` and
    /// `configuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// The number of old revisions that are kept for rollback: at most 50. Default: 10.
    #[serde(default = "revision_history_limit")]
    #[schemars(range(max = 50))]
    pub revision_history_limit: u32,
}

/// The spec of a ClusterPolicy. Its fields are those of a Policy.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "ClusterPolicy",
    category = "proviso",
    shortname = "pvcp",
    status = "PolicyStatus",
    doc = "A policy that decides about requests in the whole cluster, or that configures components of all namespaces.",
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

/// The status of a policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// The state of the policy in one word; the conditions have the details. `Pending`: no generation answers requests yet.
    /// `Updating`: an older generation answers, and the newest is being rolled out. `Active`: the newest generation
    /// answers. `Failed`: the newest generation does not work, and an older one goes on answering if there is one.
    /// `Disabled`: the policy is switched off. A generation of a configuration policy answers if components get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PolicyPhase>,
    /// The generation that answers requests. Absent until a generation answers for the first time, and while the policy is
    /// disabled. During break-glass: the generation that the webhook configuration names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_generation: Option<i64>,
    /// The conditions of the newest generation. `Scheduled`: its revision exists; False if the PolicyServer does not permit the
    /// policy, if its namespace is full, or if another request policy has its name or priority. `Initialized`: its program was fetched and
    /// compiled, and accepted its settings. `Ready`: every Ready replica serves it. `Live`: it answers requests. `RolledBack`: only
    /// False, if the last rollback was refused. Of a configuration policy, `Initialized` and `Ready`: its content or its template is
    /// valid. `Live`: components get it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The number of replicas of the policy server that serve the newest generation. Absent for a configuration policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    /// The enforcement mode of the live generation: `Protect` or `Monitor`. Absent while no generation is live, and for a policy without
    /// `admission`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The `id` of the last commit of an experiment that the operator has aborted. The write changes the version of the policy, so a
    /// late write of that commit fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub aborted_commit: Option<String>,
}

/// The state of a policy in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PolicyPhase {
    /// No generation answers requests yet.
    Pending,
    /// An older generation answers requests, and the newest is being rolled out.
    Updating,
    /// The newest generation answers requests.
    Active,
    /// The newest generation does not work. An older generation goes on answering requests, if there is one.
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

/// The number of replicas of a policy server that have loaded a revision.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ReplicaCount {
    /// The number of Ready replicas that have loaded the revision.
    pub ready: u32,
    /// The number of Ready replicas.
    pub total: u32,
    /// The text `ready/total`, for a column of `kubectl get`.
    pub summary: String,
}

impl PolicySpec {
    /// Returns true if the policy server with this name evaluates the policy. No policy server evaluates a configuration policy.
    #[must_use]
    pub fn is_evaluated_by(&self, server: &str) -> bool {
        self.configuration.is_none() && self.policy_server == server
    }
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
