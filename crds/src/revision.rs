//! `PolicyRevision`: an immutable copy of one generation of a policy. The operator creates the revisions, and the policy
//! servers serve them. They include the live generation, and the generations to which a policy can be rolled back.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use proviso_core::Failure;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::experiment::{DivergenceCounts, DivergenceSample, PreviewSettings};
use crate::policy::PolicySpec;

/// The spec of a PolicyRevision: one generation of a policy. Only `enabled` can be changed.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicyRevision",
    namespaced,
    category = "proviso",
    shortname = "pvr",
    status = "PolicyRevisionStatus",
    doc = "An immutable copy of one generation of a policy. The operator creates PolicyRevisions, in its own namespace.",
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policyRef.name"),
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.policyRef.namespace"),
    printcolumn(name = "Generation", type_ = "integer", json_path = ".spec.policyRef.generation"),
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.policyServer"),
    printcolumn(name = "Enabled", type_ = "boolean", json_path = ".spec.enabled"),
    printcolumn(
        name = "Initialized",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Initialized')].status"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("self.policyRef == oldSelf.policyRef && self.role == oldSelf.role && has(self.experimentRef) == has(oldSelf.experimentRef) && (!has(self.experimentRef) || self.experimentRef == oldSelf.experimentRef) && has(self.preview) == has(oldSelf.preview) && (!has(self.preview) || self.preview == oldSelf.preview) && self.policyServer == oldSelf.policyServer && self.data == oldSelf.data")
        .message("a revision is immutable: only `enabled` can be changed")
)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRevisionSpec {
    /// The name of the PolicyServer that serves the revision.
    pub policy_server: String,
    /// The policy and its generation.
    pub policy_ref: RevisedPolicy,
    /// The role of the revision. `Live`: a generation of the policy, which answers requests once every replica serves it.
    /// `Candidate`: an experiment, which is previewed and decides no requests. Default: Live.
    #[serde(default)]
    pub role: RevisionRole,
    /// For a Candidate, the experiment that is previewed. For a Live revision, the experiment whose commit created this
    /// generation; absent if no commit did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment_ref: Option<RevisedExperiment>,
    /// True if the policy server loads the revision, and previews it if it is a Candidate. A Candidate that is not enabled stays
    /// prepared and loaded, but is not evaluated.
    pub enabled: bool,
    /// For a Candidate, how its requests are previewed. Absent if every request is previewed and logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewSettings>,
    /// The spec of the policy in this generation; for a Candidate, the alternative spec of the experiment.
    pub data: PolicySpec,
}

/// A reference to one generation of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct RevisedPolicy {
    /// The kind of the policy: `Policy` or `ClusterPolicy`.
    pub kind: PolicyKind,
    /// The namespace of a Policy. Absent for a ClusterPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the policy.
    pub name: String,
    /// The uid of the policy. It differs from the uid of a deleted policy of the same name.
    pub uid: String,
    /// The `metadata.generation` of the policy. For a Candidate: the generation at the time when the operator created the
    /// candidate.
    pub generation: i64,
}

/// The role of a revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum RevisionRole {
    /// A generation of a policy, which answers requests once every replica serves it.
    #[default]
    Live,
    /// An experiment, which is evaluated in addition to the live revision and decides no requests.
    Candidate,
}

/// A reference to one generation of one experiment, in the namespace of its policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct RevisedExperiment {
    /// The name of the experiment.
    pub name: String,
    /// The uid of the experiment. It differs from the uid of a deleted experiment of the same name.
    pub uid: String,
    /// The `metadata.generation` of the experiment.
    pub generation: i64,
}

/// The kind of a policy, which determines its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum PolicyKind {
    Policy,
    ClusterPolicy,
}

impl PolicyKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "Policy",
            Self::ClusterPolicy => "ClusterPolicy",
        }
    }
}

/// The status of a revision.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRevisionStatus {
    /// The conditions of the revision. `Initialized`, set by the leader of the policy server: the program was fetched and
    /// compiled, and accepted its settings. `Ready`, set by the operator: every Ready replica serves the revision. `Live`,
    /// set by the operator: the revision decides requests. It is Unknown while a webhook calls a revision that is not live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The WebAssembly modules that the leader fetched. Absent if the program has no modules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["module"]))]
    pub modules: Vec<ModuleStatus>,
    /// The state of each replica of the policy server, as the replica reports it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replicas: Vec<ReplicaStatus>,
}

/// A WebAssembly module that the leader fetched. The API server refuses to change the digest: all replicas, and all later leaders,
/// use the module that the first leader fetched.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("self.digest == oldSelf.digest")
        .message("a pinned module is immutable: all replicas of a generation load the same module")
)]
pub struct ModuleStatus {
    /// The module reference in the spec.
    pub module: String,
    /// The digest of the module that the leader fetched. Every replica loads exactly this module, even if the tag has moved
    /// since.
    #[schemars(length(max = 71))]
    pub digest: String,
}

/// The state of one replica of the policy server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The name of the pod.
    pub name: String,
    /// The uid of the pod. It differs from the uid of an earlier pod of the same name.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The version of the policy server.
    pub server_version: String,
    /// `True` if the replica serves the revision, `False` if it cannot, `Unknown` while it is loading the revision.
    pub ready: ConditionStatus,
    /// The reason for `ready`: one word in CamelCase, for programs.
    pub reason: String,
    /// The details of `reason`, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time of the last change of `ready`.
    pub last_transition_time: Time,
    /// The preview results of this replica. Only for a Candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewReport>,
}

impl ReplicaStatus {
    /// Returns the result of loading the revision. `None` means that the replica has not loaded it yet.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), Failure>> {
        match self.ready {
            ConditionStatus::True => Some(Ok(())),
            ConditionStatus::False => {
                Some(Err(Failure { reason: self.reason.clone().into(), message: self.message.clone() }))
            }
            ConditionStatus::Unknown => None,
        }
    }
}

/// The differences between the verdicts of a Candidate and the live verdicts, since the candidate was created or, if that is later, since
/// the live version changed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PreviewReport {
    /// The numbers of requests by the difference between the verdicts.
    pub counts: DivergenceCounts,
    /// Samples of the requests on which the verdicts differ: at most 20 groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<DivergenceSample>,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}
