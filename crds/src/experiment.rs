//! `PolicyExperiment` and `ClusterPolicyExperiment` (AIP-236): an alternative spec of a policy, previewed on live
//! traffic without biting.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::PolicySpec;

/// A full alternative to the spec of one policy.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicyExperiment",
    namespaced,
    category = "proviso",
    shortname = "pvx",
    doc = "A possible next version of a policy, previewed on live traffic without biting.",
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policyRef.name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentSpec {
    /// The policy that this is an experiment of, in the same namespace. Cannot be changed.
    #[x_kube(validation = Rule::new("self == oldSelf").message("an experiment is of one policy: make a new one for another"))]
    pub policy_ref: PolicyRef,
    /// What the policy's spec would become.
    pub policy: PolicySpec,
    /// Start previewing on creation and after every change, without a call of `startPreview`. Default: false.
    #[serde(default)]
    pub auto_start: bool,
}

/// The spec of a ClusterPolicyExperiment: that of a PolicyExperiment, about a ClusterPolicy.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "ClusterPolicyExperiment",
    category = "proviso",
    shortname = "pvcx",
    doc = "A possible next version of a cluster policy, previewed on live traffic without biting.",
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policyRef.name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(transparent)]
pub struct ClusterPolicyExperimentSpec(pub ExperimentSpec);

/// A policy by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PolicyRef {
    pub name: String,
}
