//! `PolicyExperiment` and `ClusterPolicyExperiment` (AIP-236): an alternative spec of a policy, previewed on live requests. A
//! preview denies and changes no request.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{CustomResource, KubeSchema};
use proviso_core::Divergence;
use proviso_core::experiment::LOG_PREFIX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::canary::Canary;
use crate::names::COMMITTED_EXPERIMENT;
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
    /// The share of the requests that are previewed: more than 0, and at most 1. The uid of a request decides, so that all replicas
    /// choose the same requests. Default: 1.
    #[serde(default = "every_request")]
    #[schemars(range(max = 1), extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub sample_rate: f64,
    /// The previewed requests that are logged. Every previewed request is counted. Default: All.
    #[serde(default)]
    pub logging: PreviewLogging,
    /// The time from a start of the preview until it stops by itself: a duration such as `90m` or `48h`, from one minute to a year.
    /// Default: 336h, two weeks.
    #[serde(default = "two_weeks")]
    #[schemars(length(max = 32))]
    pub ttl: String,
}

fn every_request() -> f64 {
    1.0
}

fn two_weeks() -> String {
    DEFAULT_TTL.to_owned()
}

/// The default of `spec.ttl`: two weeks.
pub const DEFAULT_TTL: &str = "336h";
/// The shortest and the longest time to live of a preview.
pub const TTL: RangeInclusive<Duration> = Duration::from_mins(1)..=Duration::from_hours(365 * 24);

/// Parses the value of `spec.ttl`: the time from a start of the preview until it stops by itself.
///
/// # Errors
/// Returns the error as text if `ttl` is not a duration, or is out of range.
pub fn time_to_live(ttl: &str) -> Result<Duration, String> {
    let example = "must be a duration such as 90m or 48h, from 1m to 8760h";
    let parsed: Result<SignedDuration, _> = ttl.parse();
    let duration = parsed.ok().and_then(|duration| Duration::try_from(duration).ok());
    duration.filter(|it| TTL.contains(it)).ok_or_else(|| format!("is {ttl:?}: {example}"))
}

/// Returns the time that `ttl` means; the longest one if `ttl` is invalid. Admission and the folder of manifests refuse an invalid value,
/// so another version of Proviso has written it, or admission was not asked.
#[must_use]
pub fn time_to_live_or_longest(ttl: &str) -> Duration {
    time_to_live(ttl).unwrap_or(*TTL.end())
}

impl ExperimentSpec {
    /// Returns the time from a start of the preview until it stops by itself.
    ///
    /// # Errors
    /// Returns the error as text if `ttl` is not a duration, or is out of range.
    pub fn time_to_live(&self) -> Result<Duration, String> {
        time_to_live(&self.ttl)
    }

    /// Returns how the requests of the experiment are previewed.
    #[must_use]
    pub fn preview_settings(&self) -> PreviewSettings {
        PreviewSettings { sample_rate: self.sample_rate, logging: self.logging }
    }
}

/// The settings of the preview of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewSettings {
    /// The share of the requests that are previewed: more than 0, and at most 1. Default: 1.
    #[serde(default = "every_request")]
    #[schemars(range(max = 1), extend("minimum" = 0, "exclusiveMinimum" = true))]
    pub sample_rate: f64,
    /// The previewed requests that are logged. Default: All.
    #[serde(default)]
    pub logging: PreviewLogging,
}

impl Default for PreviewSettings {
    fn default() -> Self {
        Self { sample_rate: every_request(), logging: PreviewLogging::default() }
    }
}

/// The previewed requests that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum PreviewLogging {
    /// Every previewed request.
    #[default]
    All,
    /// Only requests on which the verdicts differ.
    Divergences,
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
    /// The start time of the last preview that every replica has loaded. Absent if no replica set ever loaded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previewed_start_time: Option<Time>,
    /// The commit of this experiment that is in progress. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitIntent>,
    /// The numbers of requests by the difference between the live verdict and the experiment's, over all replicas, since
    /// the last start of the preview, or since the last change of the live version if that is later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<DivergenceCounts>,
    /// Samples of the requests on which the verdicts differ: at most 20 groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<DivergenceSample>,
    /// At most 100 canaries of an experiment on a configuration policy: the PolicySubscriptions whose `canaryFor` names it. Those that
    /// have rejected the candidate are first, then those that wait. Empty while the experiment is not previewed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub canaries: Vec<Canary>,
    /// The number of replicas of the policy server that have loaded this version. Absent while the experiment is not previewed, and for a
    /// configuration policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    /// The conditions of the experiment. `Accepted`: the policy exists and has at most 10 experiments. `Initialized`: the
    /// program was fetched and compiled, and accepted its settings; or the content or the template of a configuration policy is valid.
    /// `Previewing`: every Ready replica evaluates the experiment, or its canaries get it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A commit of an experiment that is in progress. Only the API of Proviso and the operator write it, so it proves that the caller was
/// permitted to commit the experiment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommitIntent {
    /// A random identifier of the commit. The policy's annotation `proviso.dev/committed-experiment` repeats it.
    #[schemars(length(max = 64))]
    pub id: String,
    /// The `metadata.generation` of the experiment that is committed.
    pub generation: i64,
    /// The `metadata.generation` of the policy that the commit replaces. A newer generation is not replaced.
    pub policy_generation: i64,
    /// The time at which the commit began, by the clock of the API server's client. Only for people: a commit ends by the time that
    /// the operator has observed it, not by this time.
    pub since: Time,
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
    /// The time at which the preview stops by itself. Absent in metadata of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_time: Option<Time>,
    /// The cause of the stop, if no caller stopped it. Absent after a stop by a caller, and after a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_cause: Option<StopCause>,
    /// The `metadata.generation` of the experiment at the last start. Other generations are not previewed.
    pub generation: i64,
}

/// The cause of a stop that no caller requested.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct StopCause {
    /// The reason: one word in CamelCase, for programs. `Updated`: the experiment was changed. `Expired`: its `ttl` has passed. Else
    /// the reason why the start failed.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// The details, for people.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// The state of a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum PreviewState {
    Active,
    Suspended,
}

impl StopCause {
    /// The maximum lengths of the reason and of the message, in characters.
    const LENGTHS: (usize, usize) = (64, 1024);

    /// Returns a cause whose texts have at most the lengths that the schema allows.
    #[must_use]
    pub fn new(reason: &str, message: &str) -> Self {
        let (reason_length, message_length) = Self::LENGTHS;
        Self {
            reason: reason.chars().take(reason_length).collect(),
            message: message.chars().take(message_length).collect(),
        }
    }
}

/// The record of the experiment that was last committed to a policy: the annotation `proviso.dev/committed-experiment`, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct CommittedExperiment {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub etag: String,
    /// The `id` of the [`CommitIntent`]. Absent over a folder, where a commit needs no intent in a status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl CommittedExperiment {
    /// Returns the record in the annotations of a policy; `None` if there is none, or if it cannot be read.
    #[must_use]
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        serde_json::from_str(annotations.get(COMMITTED_EXPERIMENT)?).ok()
    }

    /// Returns true if `annotations` and `spec` of a policy show that this commit has copied `committed`, the spec of the experiment with
    /// this uid. The record alone proves nothing: users who may read the experiment know the id of the commit, and may be permitted to
    /// annotate the policy.
    #[must_use]
    pub fn proves(
        intent: &CommitIntent,
        (uid, committed): (&str, &PolicySpec),
        (annotations, spec): (&BTreeMap<String, String>, &PolicySpec),
    ) -> bool {
        Self::of(annotations).is_some_and(|record| {
            record.uid == uid
                && record.generation == intent.generation
                && record.commit.as_ref() == Some(&intent.id)
                && spec == committed
        })
    }
}

impl PreviewMetadata {
    /// Returns the metadata of a preview of `generation` that starts now and stops after `ttl`. `before` is the metadata of the last
    /// preview; `None` before the first start.
    #[must_use]
    pub fn start(before: Option<&Self>, generation: i64, now: Time, ttl: Duration) -> Self {
        Self {
            state: PreviewState::Active,
            log_prefix: LOG_PREFIX.to_owned(),
            stop_time: before.and_then(|before| before.stop_time.clone()),
            expire_time: now.0.checked_add(ttl).ok().map(Time),
            stop_cause: None,
            start_time: now,
            generation,
        }
    }

    /// Returns the metadata with the preview stopped now. `cause` is `None` if a caller stopped it.
    #[must_use]
    pub fn stop(self, now: Time, cause: Option<StopCause>) -> Self {
        Self { state: PreviewState::Suspended, stop_time: Some(now), stop_cause: cause, ..self }
    }

    /// Returns `now` in whole seconds, as the API server stores times; or if the last start or stop was not before that time, the second
    /// after it. So the time of each start and stop identifies it, also if the clock of another writer is ahead.
    #[must_use]
    pub fn time_after(before: Option<&Self>, now: Timestamp) -> Time {
        let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        let last = |it: &Self| it.stop_time.as_ref().map_or(it.start_time.0, |stop| stop.0.max(it.start_time.0));
        let next = before.and_then(|it| second(last(it)).checked_add(SignedDuration::from_secs(1)).ok());
        Time(next.map_or(second(now), |next| next.max(second(now))))
    }

    /// Returns the metadata for a JSON merge patch, which also removes the fields that are absent.
    #[must_use]
    pub fn to_merge_patch(&self) -> Value {
        let mut patch = json!({"stopTime": null, "expireTime": null, "stopCause": null});
        if let (Some(patch), Value::Object(fields)) = (patch.as_object_mut(), json!(self)) {
            patch.extend(fields);
        }
        patch
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
    /// The requests that the experiment evaluated.
    pub evaluated: u64,
    /// Requests with equal verdicts.
    pub same: u64,
    /// Requests that the live policy allows and the experiment denies, also because its evaluation fails.
    pub newly_denied: u64,
    /// Requests that the live policy denies and the experiment allows.
    pub newly_allowed: u64,
    /// Requests that both allow, but with different resulting objects. For a request policy: with different payloads or service
    /// providers.
    pub mutation_differs: u64,
    /// Requests that both deny, but with different messages.
    pub message_differs: u64,
    /// Requests with the same decision, message and object, but with another code, reason, cause, warning or audit annotation. For a
    /// request policy: with other constraints.
    #[serde(default)]
    pub details_differ: u64,
    /// Requests on which the evaluation of the experiment failed. Those that it would deny for that, and the live policy allows, are
    /// in `newlyDenied` too.
    pub errors: u64,
    /// Evaluations of the experiment that did not happen, because too many were waiting.
    pub dropped: u64,
    /// The time since which requests are counted.
    pub since: Time,
    /// The etag of the version of the experiment that was evaluated. Absent in counts of an older version of the policy server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The etag of the live version with which the experiment was compared. Absent if no version was live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_etag: Option<String>,
}

/// A group of requests whose verdicts differ in the same way, of one kind, namespace and user. It never includes the content of
/// requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DivergenceSample {
    /// The difference between the live verdict and the experiment's.
    #[schemars(schema_with = "divergence")]
    pub divergence: Divergence,
    /// The kind of the objects, such as `Pod` or `Deployment.apps`. For requests to services: the service type.
    pub kind: String,
    /// The namespace of the requests. For requests to services: the tenant. Absent for requests without a namespace or tenant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the user who sent the requests.
    pub user: String,
    /// The number of requests in the group.
    pub count: u64,
    /// The name of the object of the last request; for a request to a service, `metadata.name` of the payload. Absent if there is no
    /// name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The denial message for the last request: the message of the live policy if only the live policy denies, else the
    /// message of the experiment. If only details of the verdicts differ, their names. For a request to a service: both statuses, both
    /// service providers and the names of the fields, as far as they differ, and the message. At most 256 characters.
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
    fn a_ttl_is_a_duration_from_a_minute_to_a_year() {
        for (ttl, wanted) in [
            ("90m", Some(5_400)),
            ("336h", Some(1_209_600)),
            ("1h30m", Some(5_400)),
            ("59s", None),
            ("8761h", None),
            ("-5m", None),
            ("", None),
            ("soon", None),
        ] {
            let spec =
                json!({"policyRef": {"name": "p"}, "policy": {"program": {"cel": {"validations": []}}}, "ttl": ttl});
            let spec: ExperimentSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(spec.time_to_live().ok().map(|ttl| ttl.as_secs()), wanted, "{ttl:?}");
            // An invalid value is the longest time: a year.
            assert_eq!(time_to_live_or_longest(ttl).as_secs(), wanted.unwrap_or(8_760 * 3_600), "{ttl:?}");
        }
    }

    #[test]
    fn starting_and_stopping_a_preview_follows_aip_236() {
        let ttl = Duration::from_mins(1);
        let started = PreviewMetadata::start(None, 1, at(10), ttl);
        assert_eq!((started.state, started.log_prefix.as_str()), (PreviewState::Active, "PolicyPreviewLog"));
        assert_eq!((&started.start_time, &started.stop_time), (&at(10), &None));
        assert_eq!(started.expire_time, Some(at(70)));
        // An update of the experiment suspends the preview.
        assert_eq!((started.state(1), started.state(2)), (PreviewState::Active, PreviewState::Suspended));
        let stopped = started.stop(at(20), None);
        assert_eq!(
            (stopped.state, &stopped.start_time, &stopped.stop_time),
            (PreviewState::Suspended, &at(10), &Some(at(20)))
        );
        let again = PreviewMetadata::start(Some(&stopped), 2, at(30), ttl);
        assert_eq!(
            (again.state(2), &again.start_time, &again.stop_time),
            (PreviewState::Active, &at(30), &Some(at(20)))
        );
    }

    #[test]
    fn a_merge_patch_of_a_start_removes_the_cause_of_the_last_stop() {
        let cause = StopCause { reason: "Expired".to_owned(), message: String::new() };
        let minute = Duration::from_mins(1);
        let stopped = PreviewMetadata::start(None, 1, at(10), minute).stop(at(70), Some(cause));
        assert_eq!(stopped.to_merge_patch()["stopCause"]["reason"], "Expired");
        let patch = PreviewMetadata::start(Some(&stopped), 1, at(80), minute).to_merge_patch();
        assert_eq!(patch.get("stopCause"), Some(&Value::Null));
        assert_eq!((&patch["state"], &patch["stopTime"]), (&json!("ACTIVE"), &json!("1970-01-01T00:01:10Z")));
    }

    #[test]
    fn each_start_and_stop_has_another_time() {
        let now = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
        assert_eq!(PreviewMetadata::time_after(None, now(7_900)), at(7));
        let mut last = PreviewMetadata::start(None, 1, at(7), Duration::from_mins(1));
        assert_eq!(PreviewMetadata::time_after(Some(&last), now(7_900)), at(8));
        last = last.stop(at(300), None);
        assert_eq!(PreviewMetadata::time_after(Some(&last), now(7_900)), at(301), "another clock is ahead");
        assert_eq!(PreviewMetadata::time_after(Some(&last), now(400_000)), at(400));
    }

    #[test]
    fn a_commit_is_proven_by_its_record_and_by_the_spec_of_the_policy() {
        let spec = |message: &str| -> PolicySpec {
            let validation = json!({"expression": "true", "message": message});
            serde_json::from_value(json!({"program": {"cel": {"validations": [validation]}}})).unwrap()
        };
        let intent = CommitIntent { id: "id".to_owned(), generation: 2, policy_generation: 1, since: at(0) };
        let record = json!({"name": "e", "uid": "u", "generation": 2, "etag": "\"x\"", "commit": "id"});
        let with = |field: &str, value: Value| {
            let mut record = record.clone();
            record[field] = value;
            record.to_string()
        };
        for (annotation, spec_of_policy, expected) in [
            (Some(record.to_string()), spec("new"), true),
            // A user has copied the id of the commit from the status of the experiment.
            (Some(record.to_string()), spec("old"), false),
            (Some(with("uid", json!("another"))), spec("new"), false),
            (Some(with("generation", json!(3))), spec("new"), false),
            (Some(with("commit", json!("another"))), spec("new"), false),
            // An older version records no commit.
            (Some(with("commit", Value::Null)), spec("new"), false),
            (Some("e".to_owned()), spec("new"), false),
            (None, spec("new"), false),
        ] {
            let annotations = annotation.iter().map(|it| (COMMITTED_EXPERIMENT.to_owned(), it.clone())).collect();
            let is_proven = CommittedExperiment::proves(&intent, ("u", &spec("new")), (&annotations, &spec_of_policy));
            assert_eq!(is_proven, expected, "{annotation:?}");
        }
    }
}
