//! The messages of the API.

pub(crate) mod fields;
pub(crate) mod input;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_crds::names::is_reserved;
use proviso_crds::{Canary, DivergenceCounts, DivergenceSample, PolicySpec, PreviewLogging, PreviewState, StopCause};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::duration;
use crate::store::{State, StoredExperiment, StoredPolicy};

/// A policy, which admits or denies requests, or configures components. Its spec is the spec of the kinds `Policy` and `ClusterPolicy`.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policy {
    /// The resource name: `policies/cluster.NAME` or `policies/ns.NAMESPACE.NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The unique id of the policy. It differs from the id of a deleted policy of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    uid: Option<String>,
    /// The etag of this version of the spec (AIP-154). An update with an etag fails if the policy has another version.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// The program of the policy, its settings, and the requests that the policy decides about; or the configuration of components.
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<PolicySpec>,
    /// Small amounts of data of the client: at most 256 KiB in total. Default: no annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    /// The time of creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    create_time: Option<Time>,
    /// The time of the last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    update_time: Option<Time>,
    /// The state of the newest version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state: Option<State>,
    /// The reason why the newest version is not active: one stable word in upper camel case. Absent if the policy has no
    /// problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state_reason: Option<String>,
    /// The details of `stateReason`, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("readOnly" = true))]
    state_message: String,
}

/// A possible next version of a policy (AIP-236).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyExperiment {
    /// The resource name: `policies/POLICY/experiments/NAME`.
    name: String,
    /// The unique id of the experiment. It differs from the id of a deleted experiment of the same name.
    #[schemars(extend("readOnly" = true))]
    uid: String,
    /// The etag of this version of the experiment (AIP-154). `commit` requires it.
    etag: String,
    /// The next version of the policy, with the name of the live policy. Only its spec is used; the other fields are ignored.
    policy: Policy,
    /// The state of the preview. Absent before the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    preview_metadata: Option<PolicyPreviewMetadata>,
    /// Small amounts of data of the client: at most 256 KiB in total. Default: no annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    /// True if the preview starts on creation and after each change of the experiment. Default: false.
    auto_start: bool,
    /// The share of the requests that are previewed: more than 0, and at most 1. Default: 1.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    sample_rate: f64,
    /// The previewed requests that are logged. Every previewed request is counted. Default: All.
    logging: PreviewLogging,
    /// The time from a start of the preview until it stops by itself, in seconds such as `1209600s`: from one minute to a year.
    /// Default: two weeks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = duration::PATTERN))]
    ttl: Option<String>,
    /// The numbers of requests by the difference between the live verdict and the experiment's, since the last start of the
    /// preview or the last change of the live policy, whichever was later. Both etags are those of the compared versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    divergence: Option<DivergenceCounts>,
    /// Samples of the requests on which the verdicts differ: at most 20 groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("readOnly" = true))]
    samples: Vec<DivergenceSample>,
    /// The canaries of an experiment on a policy that configures components: at most 100. Empty while the experiment is not previewed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("readOnly" = true))]
    canaries: Vec<Canary>,
    /// The time of creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    create_time: Option<Time>,
    /// The time of the last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    update_time: Option<Time>,
    /// The reason why the newest version does not work: one stable word in upper camel case. Absent if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state_reason: Option<String>,
    /// The details of `stateReason`, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("readOnly" = true))]
    state_message: String,
}

/// The state of a preview, with the times of its last start and stop (AIP-236).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyPreviewMetadata {
    /// `ACTIVE` while requests are previewed, else `SUSPENDED`.
    state: PreviewState,
    /// The text that every log line about a preview starts with.
    log_prefix: String,
    /// The time of the last start.
    start_time: Time,
    /// The time of the last stop. Absent before the first stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_time: Option<Time>,
    /// The time at which the preview stops by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_time: Option<Time>,
    /// The cause of the stop, if no caller stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_cause: Option<StopCause>,
    /// The generation of the experiment that was started: it increases with each update of the experiment.
    generation: i64,
}

/// Returns the annotations that the API shows to clients.
pub(crate) fn visible_annotations(annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    annotations.into_iter().filter(|(key, _)| !is_reserved(key)).collect()
}

/// Converts a message to JSON.
fn to_value(message: impl Serialize) -> Value {
    // Serializing does not fail: the map keys of every message are strings.
    serde_json::to_value(message).unwrap_or_default()
}

impl StoredPolicy {
    /// Returns the policy as a resource of the API.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let meta = self.meta.clone();
        to_value(Policy {
            name: Some(format!("policies/{}", self.id)),
            uid: Some(meta.uid),
            etag: Some(meta.etag),
            spec: Some(self.spec.clone()),
            annotations: visible_annotations(meta.annotations),
            create_time: meta.create_time,
            update_time: meta.update_time,
            state: Some(self.state),
            state_reason: self.problem.as_ref().map(|problem| problem.reason.to_string()),
            state_message: self.problem.as_ref().map(|problem| problem.message.clone()).unwrap_or_default(),
        })
    }

    /// Returns the fields of the policy that a client can change.
    pub(crate) fn mutable(&self) -> Value {
        json!({"spec": self.spec, "annotations": visible_annotations(self.meta.annotations.clone())})
    }
}

impl StoredExperiment {
    /// Returns the experiment as a resource of the API.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let meta = self.meta.clone();
        let policy = Some(format!("policies/{}", self.name.policy));
        to_value(PolicyExperiment {
            name: self.name.to_string(),
            uid: meta.uid,
            etag: meta.etag,
            policy: Policy { name: policy, spec: Some(self.spec.clone()), ..Policy::default() },
            preview_metadata: self.preview.clone().map(|preview| PolicyPreviewMetadata {
                state: preview.state,
                log_prefix: preview.log_prefix,
                start_time: preview.start_time,
                stop_time: preview.stop_time,
                expire_time: preview.expire_time,
                stop_cause: preview.stop_cause,
                generation: preview.generation,
            }),
            annotations: visible_annotations(meta.annotations),
            auto_start: self.auto_start,
            sample_rate: self.preview_settings.sample_rate,
            logging: self.preview_settings.logging,
            ttl: self.time_to_live().map(duration::format),
            divergence: self.divergence.clone(),
            samples: self.samples.clone(),
            canaries: self.canaries.clone(),
            create_time: meta.create_time,
            update_time: meta.update_time,
            state_reason: self.problem.as_ref().map(|problem| problem.reason.to_string()),
            state_message: self.problem.as_ref().map(|problem| problem.message.clone()).unwrap_or_default(),
        })
    }

    /// Returns the fields of the experiment that a client can change.
    pub(crate) fn mutable(&self) -> Value {
        json!({
            "policy": {"spec": self.spec},
            "annotations": visible_annotations(self.meta.annotations.clone()),
            "autoStart": self.auto_start,
            "sampleRate": self.preview_settings.sample_rate,
            "logging": self.preview_settings.logging,
            "ttl": self.time_to_live().map(duration::format),
        })
    }
}
