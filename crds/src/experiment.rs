//! `PolicyExperiment` and `ClusterPolicyExperiment` (AIP-236): an alternative spec of a policy, previewed on live
//! traffic without biting.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use proviso_core::Divergence;
use proviso_core::experiment::LOG_PREFIX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::{PolicySpec, ReplicaCount};

/// A full alternative to the spec of one policy.
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
    doc = "A possible next version of a policy, previewed on live traffic without biting.",
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
    status = "ExperimentStatus",
    validation = Rule::new("self.metadata.name.size() <= 150").message("an experiment's name has at most 150 characters"),
    doc = "A possible next version of a cluster policy, previewed on live traffic without biting.",
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

/// A policy by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PolicyRef {
    pub name: String,
}

/// Where an experiment stands.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentStatus {
    /// Of this version of the experiment: `commit` wants it (AIP-154).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Of the version of the policy that is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_etag: Option<String>,
    /// Not there before previewing is started for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_metadata: Option<PreviewMetadata>,
    /// How the verdicts differ since previewing was started last, over all replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<DivergenceCounts>,
    /// Requests about which the verdicts differ: at most 20 groups of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<DivergenceSample>,
    /// How many replicas of the policy server have loaded this version, while it is previewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    /// `Accepted`: there is such a policy, and it has no more than 10 experiments. `Initialized`: the program was fetched,
    /// compiled and accepted its settings. `Previewing`: every replica evaluates it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Previewing, as it was started and stopped last (AIP-236, `PolicyPreviewMetadata`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewMetadata {
    pub state: PreviewState,
    /// What every log line about the preview starts with.
    pub log_prefix: String,
    /// When previewing was started last.
    pub start_time: Time,
    /// When previewing was stopped last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<Time>,
    /// The `metadata.generation` of the experiment that was started last. No other is previewed.
    pub generation: i64,
}

/// Whether an experiment is previewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum PreviewState {
    Active,
    Suspended,
}

impl PreviewMetadata {
    /// This generation is previewed from now on, whatever was before.
    #[must_use]
    pub fn start(before: Option<&Self>, generation: i64, now: Time) -> Self {
        let stop_time = before.and_then(|before| before.stop_time.clone());
        Self { state: PreviewState::Active, log_prefix: LOG_PREFIX.to_owned(), start_time: now, stop_time, generation }
    }

    /// The same, not previewed from now on.
    #[must_use]
    pub fn stop(self, now: Time) -> Self {
        Self { state: PreviewState::Suspended, stop_time: Some(now), ..self }
    }

    /// Whether this generation of the experiment is previewed: an update suspends (AIP-236), also before anybody has
    /// written so.
    #[must_use]
    pub fn state(&self, generation: i64) -> PreviewState {
        if self.generation == generation { self.state } else { PreviewState::Suspended }
    }
}

/// Requests by how the verdicts on them differ.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DivergenceCounts {
    /// All that the experiment was asked about; of these, the others.
    pub evaluated: u64,
    pub same: u64,
    /// Allowed now, denied once the experiment is live.
    pub newly_denied: u64,
    /// Denied now, allowed once the experiment is live.
    pub newly_allowed: u64,
    /// Both allow, and make different objects of the request.
    pub mutation_differs: u64,
    /// Both deny, with another message.
    pub message_differs: u64,
    /// The experiment came to no decision.
    pub errors: u64,
    /// Requests that it was not asked about, because there were too many.
    pub dropped: u64,
    /// Since when.
    pub since: Time,
}

/// Requests that differ in the same way: of one kind, one namespace, one user. Never their content.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DivergenceSample {
    #[schemars(schema_with = "divergence")]
    pub divergence: Divergence,
    /// Such as `Pod` or `Deployment.apps`.
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub user: String,
    pub count: u64,
    /// The name of the object that was seen last, if it had one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What the one of the two that denies says: of the experiment, unless only the live policy denies. At most 256
    /// characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    pub first_seen: Time,
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
    fn previews_are_started_and_stopped_as_the_aip_says() {
        let started = PreviewMetadata::start(None, 1, at(10));
        assert_eq!((started.state, started.log_prefix.as_str()), (PreviewState::Active, "PolicyPreviewLog"));
        assert_eq!((&started.start_time, &started.stop_time), (&at(10), &None));
        // An update suspends.
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
