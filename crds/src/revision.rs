//! `PolicyRevision`: one generation of a policy, frozen. The operator makes them and the policy servers serve them; the
//! one that is live and the ones that can be rolled back to are all here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use proviso_core::Failure;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::experiment::{DivergenceCounts, DivergenceSample};
use crate::policy::PolicySpec;

/// One generation of a policy. Nothing but `enabled` can be changed.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicyRevision",
    namespaced,
    category = "proviso",
    shortname = "pvr",
    status = "PolicyRevisionStatus",
    doc = "One generation of a policy, as it was. Made by the operator, in its own namespace.",
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
    validation = Rule::new("self.policyRef == oldSelf.policyRef && self.role == oldSelf.role && has(self.experimentRef) == has(oldSelf.experimentRef) && (!has(self.experimentRef) || self.experimentRef == oldSelf.experimentRef) && self.policyServer == oldSelf.policyServer && self.data == oldSelf.data")
        .message("a revision is what was: only `enabled` can be changed")
)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRevisionSpec {
    /// The PolicyServer that serves it.
    pub policy_server: String,
    /// What it is a revision of.
    pub policy_ref: RevisedPolicy,
    /// Whether it is made to answer, or to be previewed. Default: Live.
    #[serde(default)]
    pub role: RevisionRole,
    /// Of a Candidate, the experiment that it is; of a Live revision, the one that was committed to it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment_ref: Option<RevisedExperiment>,
    /// Whether the policy server loads it.
    pub enabled: bool,
    /// The spec of the policy at that generation, or the one that the experiment would make of it.
    pub data: PolicySpec,
}

/// One generation of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct RevisedPolicy {
    pub kind: PolicyKind,
    /// Of a Policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// Tells a policy from one of the same name that was deleted.
    pub uid: String,
    /// Its `metadata.generation`; for a Candidate, the one that it was when the candidate was made.
    pub generation: i64,
}

/// What a revision is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum RevisionRole {
    /// A generation of a policy, which answers requests once every replica serves it.
    #[default]
    Live,
    /// An experiment, which is asked beside the live revision and decides nothing.
    Candidate,
}

/// One generation of one experiment, in the namespace of its policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct RevisedExperiment {
    pub name: String,
    /// Tells an experiment from one of the same name that was deleted.
    pub uid: String,
    /// Its `metadata.generation`.
    pub generation: i64,
}

/// The scope of a policy.
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

/// How far a revision is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRevisionStatus {
    /// `Initialized`, by the leader of the policy server: the program was fetched, compiled and accepted its settings.
    /// `Ready`, by the operator: every replica serves the revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// What the leader prepared, where the program has modules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["module"]))]
    pub modules: Vec<ModuleStatus>,
    /// What each replica says about itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replicas: Vec<ReplicaStatus>,
}

/// A module that was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ModuleStatus {
    /// The reference in the spec.
    pub module: String,
    /// What it was when it was fetched: replicas load exactly this, also when the tag has moved since.
    pub digest: String,
}

/// One replica of the policy server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The name of the pod.
    pub name: String,
    /// Tells the pod from its predecessor of the same name.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The version of the policy server.
    pub server_version: String,
    /// Whether it serves the revision.
    pub ready: ConditionStatus,
    /// One word in CamelCase.
    pub reason: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When `ready` last changed.
    pub last_transition_time: Time,
    /// Of a Candidate: what came of it on this replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewReport>,
}

impl ReplicaStatus {
    /// The result of loading the revision; none while the replica has not tried.
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

/// How the verdicts of a Candidate differ from the live ones, since it was made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PreviewReport {
    pub counts: DivergenceCounts,
    /// At most 20.
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
