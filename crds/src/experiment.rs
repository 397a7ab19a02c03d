//! `PolicyExperiment` and `ClusterPolicyExperiment` (AIP-236): an alternative spec of a policy, previewed on live requests. A
//! preview denies and changes no request.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use proviso_core::Divergence;
use proviso_core::experiment::LOG_PREFIX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::{PolicySpec, ReplicaCount};

/// The spec of a PolicyExperiment: a complete alternative spec of one policy.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicyExperiment",
    namespaced,
    category = "proviso",
    shortname = "pvx",
    status = "ExperimentStatus",
    validation = Rule::new("self.metadata.name.size() <= 150").message("an experiment's name has at most 150 characters"),
    doc = "A possible next version of a policy, previewed on live requests. A preview denies and changes no request.",
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policyRef.name"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.previewMetadata.state"),
    printcolumn(name = "Evaluated", type_ = "integer", json_path = ".status.divergence.evaluated"),
    printcolumn(name = "Denied", type_ = "integer", json_path = ".status.divergence.newlyDenied"),
    printcolumn(name = "Allowed", type_ = "integer", json_path = ".status.divergence.newlyAllowed"),
    printcolumn(name = "Errors", type_ = "integer", json_path = ".status.divergence.errors"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentSpec {
    /// The policy of this experiment: a Policy in the same namespace, or for a ClusterPolicyExperiment a ClusterPolicy.
    /// Immutable.
    #[x_kube(
        validation = Rule::new("self == oldSelf")
            .message("an experiment belongs to one policy: create a new experiment for another policy")
    )]
    pub policy_ref: PolicyRef,
    /// The complete spec that replaces the spec of the policy when the experiment is committed.
    pub policy: PolicySpec,
    /// True if the preview starts on creation and after each change of the experiment, without a call of `startPreview`.
    /// Default: false.
    #[serde(default)]
    pub auto_start: bool,
}

/// The spec of a ClusterPolicyExperiment. Its fields are those of a PolicyExperiment, and its policy is a ClusterPolicy.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "ClusterPolicyExperiment",
    category = "proviso",
    shortname = "pvcx",
    status = "ExperimentStatus",
    validation = Rule::new("self.metadata.name.size() <= 150").message("an experiment's name has at most 150 characters"),
    doc = "A possible next version of a ClusterPolicy, previewed on live requests. A preview denies and changes no request.",
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policyRef.name"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.previewMetadata.state"),
    printcolumn(name = "Evaluated", type_ = "integer", json_path = ".status.divergence.evaluated"),
    printcolumn(name = "Denied", type_ = "integer", json_path = ".status.divergence.newlyDenied"),
    printcolumn(name = "Allowed", type_ = "integer", json_path = ".status.divergence.newlyAllowed"),
    printcolumn(name = "Errors", type_ = "integer", json_path = ".status.divergence.errors"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(transparent)]
pub struct ClusterPolicyExperimentSpec(pub ExperimentSpec);

/// A reference to a policy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PolicyRef {
    /// The name of the policy.
    pub name: String,
}

/// The status of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentStatus {
    /// The etag of this version of the experiment (AIP-154). `commit` requires it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The etag of the live version of the policy. Absent while no generation of the policy is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_etag: Option<String>,
    /// The state of the preview. Absent before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_metadata: Option<PreviewMetadata>,
    /// The numbers of requests by the difference between the live verdict and the experiment's, over all replicas, since
    /// the last start of the preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<DivergenceCounts>,
    /// Samples of the requests on which the verdicts differ: at most 20 groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<DivergenceSample>,
    /// The number of replicas of the policy server that have loaded this version. Absent while the experiment is not previewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    /// The conditions of the experiment. `Accepted`: the policy exists and has at most 10 experiments. `Initialized`: the
    /// program was fetched and compiled, and accepted its settings. `Previewing`: every Ready replica evaluates the
    /// experiment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The state of a preview, with the times of its last start and stop (AIP-236, `PolicyPreviewMetadata`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewMetadata {
    /// `ACTIVE` while requests are previewed, else `SUSPENDED`.
    pub state: PreviewState,
    /// The text that every log line about the preview starts with.
    pub log_prefix: String,
    /// The time of the last start.
    pub start_time: Time,
    /// The time of the last stop. Absent before the first stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<Time>,
    /// The `metadata.generation` of the experiment at the last start. Other generations are not previewed.
    pub generation: i64,
}

/// The state of a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum PreviewState {
    Active,
    Suspended,
}

impl PreviewMetadata {
    /// Returns the metadata of a preview of `generation` that starts now. `before` is the metadata of the last preview;
    /// `None` before the first start.
    #[must_use]
    pub fn start(before: Option<&Self>, generation: i64, now: Time) -> Self {
        let stop_time = before.and_then(|before| before.stop_time.clone());
        Self { state: PreviewState::Active, log_prefix: LOG_PREFIX.to_owned(), start_time: now, stop_time, generation }
    }

    /// Returns the metadata with the preview stopped now.
    #[must_use]
    pub fn stop(self, now: Time) -> Self {
        Self { state: PreviewState::Suspended, stop_time: Some(now), ..self }
    }

    /// Returns the state of the preview for `generation`, the current generation of the experiment. An update of the experiment
    /// suspends the preview (AIP-236), even before the operator has written the new state.
    #[must_use]
    pub fn state(&self, generation: i64) -> PreviewState {
        if self.generation == generation { self.state } else { PreviewState::Suspended }
    }
}

/// The numbers of previewed requests, by the difference between the live verdict and the experiment's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DivergenceCounts {
    /// The requests that the experiment evaluated: the sum of the other counts except `dropped`.
    pub evaluated: u64,
    /// Requests with equal verdicts.
    pub same: u64,
    /// Requests that the live policy allows and the experiment denies.
    pub newly_denied: u64,
    /// Requests that the live policy denies and the experiment allows.
    pub newly_allowed: u64,
    /// Requests that both allow, but with different resulting objects.
    pub mutation_differs: u64,
    /// Requests that both deny, but with different messages.
    pub message_differs: u64,
    /// Requests on which the evaluation of the experiment failed.
    pub errors: u64,
    /// Requests that were not evaluated, because the preview queue was full.
    pub dropped: u64,
    /// The time since which requests are counted.
    pub since: Time,
}

/// A group of requests whose verdicts differ in the same way, of one kind, namespace and user. It never includes the content of
/// requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DivergenceSample {
    /// The difference between the live verdict and the experiment's.
    #[schemars(schema_with = "divergence")]
    pub divergence: Divergence,
    /// The kind of the objects, such as `Pod` or `Deployment.apps`.
    pub kind: String,
    /// The namespace of the requests. Absent for requests without a namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the user who sent the requests.
    pub user: String,
    /// The number of requests in the group.
    pub count: u64,
    /// The name of the object of the last request. Absent if that object had no name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The denial message for the last request: the message of the live policy if only the live policy denies, else the
    /// message of the experiment. At most 256 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time of the first request.
    pub first_seen: Time,
    /// The time of the last request.
    pub last_seen: Time,
}

fn divergence(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let all = Divergence::ALL.map(Divergence::as_str);
    schemars::json_schema!({"type": "string", "enum": all})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap())
    }

    #[test]
    fn starting_and_stopping_a_preview_follows_aip_236() {
        let started = PreviewMetadata::start(None, 1, at(10));
        assert_eq!((started.state, started.log_prefix.as_str()), (PreviewState::Active, "PolicyPreviewLog"));
        assert_eq!((&started.start_time, &started.stop_time), (&at(10), &None));
        // An update of the experiment suspends the preview.
        assert_eq!((started.state(1), started.state(2)), (PreviewState::Active, PreviewState::Suspended));
        let stopped = started.stop(at(20));
        assert_eq!(
            (stopped.state, &stopped.start_time, &stopped.stop_time),
            (PreviewState::Suspended, &at(10), &Some(at(20)))
        );
        let again = PreviewMetadata::start(Some(&stopped), 2, at(30));
        assert_eq!(
            (again.state(2), &again.start_time, &again.stop_time),
            (PreviewState::Active, &at(30), &Some(at(20)))
        );
    }
}
