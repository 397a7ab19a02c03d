//! The API calls of reconciles, with a mock API server.

mod commits;
mod configuration;
mod metadata;
mod requests;

use std::time::Duration;

use kube::runtime::watcher::Event;
use proviso_core::experiment::etag;
use proviso_core::experiment::rollout::Timer;
use proviso_crds::fixtures::{condition, replica};
use proviso_crds::names::{POLICY_LABEL, PREVIEW_START, SERVER_LABEL, field_managers};
use proviso_crds::{
    ClusterPolicyExperiment, ConditionType, Conditions as _, ExperimentStatus, PolicyRevision, PreviewState,
};
use serde_json::{Value, json};

use super::*;
use crate::mock_api::MockApi;

const EXPERIMENT: &str = "clusterpolicyexperiments/e";
const CANDIDATE: &str = "policyrevisions/experiment.cluster.e-1";
const POLICY: &str = "clusterpolicies/a";
/// A start in the future, so that the preview does not end during a test.
const START: &str = "2999-01-01T00:00:00Z";
/// The end of that preview, after the default time to live.
const END: &str = "2999-01-15T00:00:00Z";

fn policy() -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy",
        "metadata": {"name": "a", "uid": "policy", "generation": 1},
        "spec": {
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
        },
    })
}

/// Returns the live revision of the policy.
fn live() -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision",
        "metadata": {"name": "cluster.a-1", "namespace": "proviso", "labels": {POLICY_LABEL: "policy"}},
        "spec": {
            "policyServer": "default", "enabled": true, "data": policy()["spec"],
            "policyRef": {"kind": "ClusterPolicy", "name": "a", "uid": "policy", "generation": 1},
        },
        "status": {"conditions": [condition("Live", "True", "Live", "", 1)]},
    })
}

fn experiment(status: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment",
        "metadata": {
            "name": "e", "uid": "experiment", "generation": 1, "finalizers": [finalizers::PREVIEW],
            "creationTimestamp": START,
        },
        "spec": {"policyRef": {"name": "a"}, "policy": policy()["spec"]},
        "status": status,
    })
}

/// Returns the status that the API writes for a start or a stop.
fn preview(state: &str) -> Value {
    json!({"previewMetadata": {
        "state": state, "logPrefix": "PolicyPreviewLog", "generation": 1, "startTime": START,
        "expireTime": END,
    }})
}

fn commit_intent() -> Value {
    json!({"commit": {"id": "id", "generation": 1, "policyGeneration": 1, "since": START}})
}

/// Returns the candidate. `start` is `None` if it is only prepared for a commit.
fn candidate(start: Option<&str>, enabled: bool, initialized: &Value, replicas: &[Value]) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision",
        "metadata": {
            "name": "experiment.cluster.e-1", "namespace": "proviso", "labels": {EXPERIMENT_LABEL: "experiment"},
            "annotations": start.map(|start| json!({PREVIEW_START: start})),
        },
        "spec": {
            "policyServer": "default", "role": "Candidate", "enabled": enabled, "data": policy()["spec"],
            "policyRef": {"kind": "ClusterPolicy", "name": "a", "uid": "policy", "generation": 1},
            "experimentRef": {"name": "e", "uid": "experiment", "generation": 1},
        },
        "status": {"conditions": [initialized], "replicas": replicas},
    })
}

fn prepared() -> Value {
    condition("Initialized", "True", "Prepared", "", 1)
}

/// Returns the report of a replica about the candidate, with this number of requests that are newly denied.
fn report(number: usize, reason: &str, denied: u64) -> Value {
    let mut report = replica(&format!("policy-server-default-{number}"), &format!("pod-{number}"), "True", reason);
    report["preview"] = json!({"counts": {
        "evaluated": denied, "same": 0, "newlyDenied": denied, "newlyAllowed": 0, "mutationDiffers": 0,
        "messageDiffers": 0, "errors": 0, "dropped": 0, "since": START, "etag": etag("experiment", 1),
        "liveEtag": etag("policy", 1),
    }});
    report
}

fn status_of_operator() -> String {
    format!("PATCH {EXPERIMENT}/status ({})", field_managers::OPERATOR)
}

/// One experiment of one live policy, and two Ready pods of its policy server.
struct Cluster {
    api: MockApi,
    context: Arc<Context>,
    timers: Timers,
}

impl Cluster {
    fn without_policy(status: &Value) -> Self {
        let api = MockApi::default();
        let context = api.context();
        for number in 0..2 {
            let pod = json!({
                "metadata": {
                    "name": format!("policy-server-default-{number}"), "namespace": "proviso",
                    "uid": format!("pod-{number}"), "labels": {SERVER_LABEL: "default"},
                },
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            api.put(&context.caches.pods, pod);
        }
        let cluster = Self { api, context, timers: Timers::default() };
        cluster.write(status);
        cluster
    }

    fn new(status: &Value) -> Self {
        let cluster = Self::without_policy(status);
        cluster.api.put(&cluster.context.caches.cluster_policies, policy());
        cluster.api.put(&cluster.context.caches.revisions, live());
        cluster
    }

    /// Writes the status of the experiment, as the API does.
    fn write(&self, status: &Value) {
        self.api.put(&self.context.caches.cluster_experiments, experiment(status));
    }

    /// Writes the candidate, as the policy server does.
    fn write_candidate(&self, candidate: Value) {
        self.api.put(&self.context.caches.revisions, candidate);
    }

    /// Delivers the deletion of the candidate.
    fn forget_candidate(&self) {
        let mut deleted = candidate(None, false, &prepared(), &[]);
        deleted["metadata"]["resourceVersion"] = "1000".into();
        let deleted = serde_json::from_value::<MaybeMalformed<PolicyRevision>>(deleted).unwrap();
        self.context.caches.revisions.apply_event(Event::Delete(deleted));
    }

    /// Lets this timer run for a long time.
    fn wait_for(&self, timer: Timer) {
        let long_ago = Instant::now().checked_sub(Duration::from_mins(10)).unwrap();
        self.timers.keep("experiment", &[], long_ago);
        self.timers.keep("experiment", &[timer], long_ago);
    }

    async fn reconcile(&self) -> Vec<String> {
        self.try_reconcile().await.unwrap();
        self.api.calls()
    }

    async fn try_reconcile(&self) -> Result<Action, Error> {
        let experiment = self.context.caches.cluster_experiments.reader().get("e", None).unwrap();
        reconcile::<ClusterPolicyExperiment>(&experiment, &self.timers, &self.context).await
    }

    fn status(&self) -> ExperimentStatus {
        let experiment = self.context.caches.cluster_experiments.reader().get("e", None).unwrap();
        experiment.0.as_ref().unwrap().status.clone().unwrap_or_default()
    }

    /// Returns the status and the reason of a condition of the experiment.
    fn condition(&self, type_: ConditionType) -> String {
        let status = self.status();
        let condition = status.conditions.condition(type_);
        condition.map(|it| format!("{} {}", it.status, it.reason)).unwrap_or_default()
    }

    /// Returns the number of newly denied requests, and the condition `Previewing`.
    fn preview(&self) -> (Option<u64>, String) {
        let denied = self.status().divergence.map(|counts| counts.newly_denied);
        (denied, self.condition(ConditionType::Previewing))
    }

    /// Returns the message of the condition `Previewing`.
    fn message(&self) -> String {
        let status = self.status();
        status.conditions.condition(ConditionType::Previewing).map(|it| it.message.clone()).unwrap_or_default()
    }

    /// Returns the id of the last aborted commit.
    fn aborted_commit(&self) -> Option<String> {
        let policy = self.context.caches.cluster_policies.reader().get("a", None).unwrap();
        policy.0.as_ref().unwrap().status.as_ref()?.aborted_commit.clone()
    }
}

#[tokio::test]
async fn a_stop_writes_the_final_counts_before_it_deletes_the_candidate() {
    let cluster = Cluster::new(&preview("ACTIVE"));
    let reports = [report(0, "Loaded", 3), report(1, "Loaded", 0)];
    cluster.write_candidate(candidate(Some(START), true, &prepared(), &reports));
    let (status, events) = (status_of_operator(), ["POST events (Previewing)", "POST events (FirstDivergence)"]);
    assert_eq!(cluster.reconcile().await, [events[0], events[1], &status]);
    assert_eq!(cluster.preview(), (Some(3), "True Previewing".to_owned()));
    let known = cluster.status();
    assert_eq!(known.previewed_start_time, known.preview_metadata.map(|it| it.start_time));
    assert!(cluster.reconcile().await.is_empty());

    cluster.write(&preview("SUSPENDED"));
    assert_eq!(cluster.reconcile().await, [format!("PATCH {CANDIDATE}"), status.clone()]);
    assert_eq!(cluster.preview(), (Some(3), "False Stopping".to_owned()));
    assert!(cluster.reconcile().await.is_empty(), "no replica has stopped");
    let reports = [report(0, "Suspended", 5), report(1, "Loaded", 0)];
    cluster.write_candidate(candidate(Some(START), false, &prepared(), &reports));
    assert_eq!(cluster.reconcile().await, [status.as_str()], "one replica has stopped");
    let reports = [report(0, "Suspended", 5), report(1, "Suspended", 2)];
    cluster.write_candidate(candidate(Some(START), false, &prepared(), &reports));
    assert_eq!(cluster.reconcile().await, [status.clone(), format!("DELETE {CANDIDATE}")]);
    assert_eq!(cluster.preview(), (Some(7), "False Stopping".to_owned()));
    cluster.forget_candidate();
    assert_eq!(cluster.reconcile().await, [status]);
    assert_eq!(cluster.preview(), (Some(7), "False Suspended".to_owned()));
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn counts_of_replicas_that_remove_their_report_stay() {
    let cluster = Cluster::new(&preview("ACTIVE"));
    let reports = [report(0, "Loaded", 3), report(1, "Loaded", 1)];
    cluster.write_candidate(candidate(Some(START), true, &prepared(), &reports));
    cluster.reconcile().await;
    cluster.write(&preview("SUSPENDED"));
    cluster.reconcile().await;
    cluster.write_candidate(candidate(Some(START), false, &prepared(), &[]));
    assert_eq!(cluster.reconcile().await, [format!("DELETE {CANDIDATE}")]);
    assert_eq!(cluster.preview(), (Some(4), "False Stopping".to_owned()));
}

#[tokio::test]
async fn a_stop_does_not_wait_for_silent_replicas_forever() {
    let cluster = Cluster::new(&preview("SUSPENDED"));
    cluster.write_candidate(candidate(Some(START), false, &prepared(), &[report(0, "Loaded", 0)]));
    assert_eq!(cluster.reconcile().await, [status_of_operator()]);
    cluster.wait_for(Timer::Stop("experiment.cluster.e-1".to_owned()));
    assert_eq!(cluster.reconcile().await, [format!("DELETE {CANDIDATE}")]);
}

#[tokio::test]
async fn a_start_that_fails_is_suspended_with_its_cause() {
    let cluster = Cluster::new(&preview("ACTIVE"));
    let failed = condition("Initialized", "False", "CompileError", "no such thing", 1);
    cluster.write_candidate(candidate(Some(START), true, &failed, &[]));
    let (state, event) = (format!("PATCH {EXPERIMENT}/status"), "POST events (CompileError)".to_owned());
    assert_eq!(cluster.reconcile().await, [state, event]);
    let metadata = cluster.status().preview_metadata.unwrap();
    let cause = metadata.stop_cause.unwrap();
    assert_eq!((metadata.state, metadata.stop_time.is_some()), (PreviewState::Suspended, true));
    assert_eq!((cause.reason.as_str(), cause.message.as_str()), ("CompileError", "no such thing"));
    assert_eq!(cluster.reconcile().await, [format!("PATCH {CANDIDATE}"), status_of_operator()]);
    assert_eq!(cluster.reconcile().await, [format!("DELETE {CANDIDATE}")]);
    cluster.forget_candidate();
    cluster.reconcile().await;
    assert_eq!(cluster.condition(ConditionType::Previewing), "False Suspended");
    assert_eq!(cluster.message(), "generation 1 is suspended: CompileError: no such thing");
}

#[tokio::test]
async fn a_missing_policy_is_looked_up_before_a_preview_is_suspended() {
    let cluster = Cluster::without_policy(&preview("ACTIVE"));
    let get = format!("GET {POLICY}");
    let (state, event) = (format!("PATCH {EXPERIMENT}/status"), "POST events (PolicyNotFound)".to_owned());
    assert_eq!(cluster.reconcile().await, [get.clone(), state, event]);
    let cause = cluster.status().preview_metadata.unwrap().stop_cause.unwrap();
    assert_eq!(cause.reason, "PolicyNotFound");

    // The cache of policies is late.
    let cluster = Cluster::new(&preview("ACTIVE"));
    let mut deleted = policy();
    deleted["metadata"]["resourceVersion"] = "1000".into();
    cluster.context.caches.cluster_policies.apply_event(Event::Delete(serde_json::from_value(deleted).unwrap()));
    assert_eq!(cluster.try_reconcile().await.unwrap(), Action::requeue(RETRY));
    assert_eq!(cluster.api.calls(), [get]);
}

#[tokio::test]
async fn a_preview_of_a_malformed_policy_goes_on_only_if_the_policy_is_live() {
    let mut malformed = policy();
    malformed["spec"]["program"] = json!(7);
    let cluster = Cluster::new(&preview("ACTIVE"));
    cluster.api.put(&cluster.context.caches.cluster_policies, malformed.clone());
    assert_eq!(cluster.reconcile().await, [status_of_operator(), "POST policyrevisions".to_owned()]);
    assert_eq!(cluster.condition(ConditionType::Accepted), "True Accepted");

    // Nothing names the policy server.
    let cluster = Cluster::without_policy(&preview("ACTIVE"));
    cluster.api.put(&cluster.context.caches.cluster_policies, malformed);
    let (state, event) = (format!("PATCH {EXPERIMENT}/status"), "POST events (Malformed)".to_owned());
    assert_eq!(cluster.reconcile().await, [state, event]);
    let metadata = cluster.status().preview_metadata.unwrap();
    let cause = metadata.stop_cause.unwrap();
    assert_eq!((metadata.state, cause.reason.as_str()), (PreviewState::Suspended, "Malformed"));
    for words in ["the policy cluster.a cannot be read", "spec.program: "] {
        assert!(cause.message.contains(words), "{cause:?}");
    }
    cluster.reconcile().await;
    assert_eq!(cluster.condition(ConditionType::Accepted), "False Malformed");
}

#[tokio::test]
async fn a_start_reports_that_it_is_preparing_before_its_candidate_exists() {
    let cluster = Cluster::new(&preview("SUSPENDED"));
    cluster.reconcile().await;
    assert_eq!(cluster.condition(ConditionType::Previewing), "False Suspended");
    cluster.write(&preview("ACTIVE"));
    cluster.api.refuse("POST policyrevisions", 500);
    assert!(cluster.try_reconcile().await.is_err());
    assert_eq!(cluster.api.calls(), [status_of_operator(), "POST policyrevisions".to_owned()]);
    assert_eq!(cluster.condition(ConditionType::Previewing), "False Preparing");
    assert_eq!(cluster.reconcile().await, ["POST policyrevisions"]);
}

#[tokio::test]
async fn settings_of_a_preview_are_in_its_candidate_unless_they_are_the_default() {
    for (settings, expected) in [
        (json!({"sampleRate": 1.0, "logging": "All"}), Value::Null),
        (json!({"sampleRate": 0.5}), json!({"sampleRate": 0.5, "logging": "All"})),
        (json!({"logging": "Divergences"}), json!({"sampleRate": 1.0, "logging": "Divergences"})),
    ] {
        let mut experiment = experiment(&json!({}));
        for (key, value) in settings.as_object().unwrap() {
            experiment["spec"][key] = value.clone();
        }
        let experiment: ClusterPolicyExperiment = serde_json::from_value(experiment).unwrap();
        let policy = rollout::Policy { uid: "policy".to_owned(), server: "default".to_owned() };
        let session = rollout::CandidateSession { generation: 1, policy, start: START.to_owned() };
        let desired = rollout::DesiredCandidate { session, is_enabled: true };
        let candidate = build::candidate(&experiment, &desired, 1, "proviso").unwrap();
        assert_eq!(serde_json::to_value(&candidate.spec).unwrap()["preview"], expected, "{settings}");
    }
}
