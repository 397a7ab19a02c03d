//! Tables of statuses, and a model of an experiment whose operations are polled at any time.

mod model;

use proviso_crds::fixtures;
use serde_json::{Value, json};

use super::*;

/// The time of the last start in the tables.
const START: &str = "2026-11-20T09:14:07Z";
const EARLIER: &str = "2026-11-20T09:00:00Z";
const LATER: &str = "2026-11-20T09:30:00Z";

fn time(text: &str) -> Time {
    serde_json::from_value(json!(text)).unwrap()
}

fn progress_of(effect: Effect, kind: &str, auto_start: bool, start: Option<&str>, status: &Value) -> String {
    let spec = json!({"program": {"cel": {"validations": []}}});
    let is_experiment = kind.ends_with("Experiment");
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": kind,
        "metadata": {"name": "x", "uid": "u", "generation": 2},
        "spec": if is_experiment { json!({"policyRef": {"name": "p"}, "policy": spec, "autoStart": auto_start}) } else { spec },
        "status": status,
    }))
    .unwrap();
    let awaited = AwaitedEffect {
        effect,
        policy: "cluster.p".parse().unwrap(),
        experiment: is_experiment.then(|| "x".to_owned()),
        uid: "u".into(),
        version: "2".into(),
        start: start.map(time),
    };
    describe(compute(&awaited, Some(&object)).unwrap())
}

/// Returns `running`, `done`, or the code and the reason of the error.
fn describe(progress: Progress) -> String {
    match progress {
        Progress::Running(_) => "running".to_owned(),
        Progress::Done => "done".to_owned(),
        Progress::Failed(error) => format!("{} {}", error.code.as_str(), error.reason()),
    }
}

fn condition(type_: &str, status: &str, reason: &str, generation: i64) -> Value {
    fixtures::condition(type_, status, reason, "no", generation)
}

fn preview(state: &str, start: &str, generation: i64) -> Value {
    json!({"state": state, "logPrefix": "PolicyPreviewLog", "startTime": start, "generation": generation})
}

fn suspended(reason: &str) -> Value {
    let mut preview = preview("SUSPENDED", START, 2);
    preview["stopCause"] = json!({"reason": reason, "message": "it failed"});
    preview
}

#[test]
fn the_operation_of_a_policy_runs_until_the_policy_is_live_or_failed() {
    let failed = json!({
        "phase": "Failed", "liveGeneration": 1, "conditions": [condition("Initialized", "False", "CompileError", 2)],
    });
    for (status, wanted) in [
        (json!(null), "running"),
        (
            json!({"phase": "Active", "liveGeneration": 1, "conditions": [condition("Live", "True", "Live", 1)]}),
            "running",
        ),
        (json!({"phase": "Active", "liveGeneration": 2, "conditions": [condition("Live", "True", "Live", 2)]}), "done"),
        (json!({"phase": "Disabled", "conditions": [condition("Live", "False", "Disabled", 2)]}), "done"),
        (failed, "FAILED_PRECONDITION COMPILE_ERROR"),
    ] {
        assert_eq!(progress_of(Effect::Update, "ClusterPolicy", false, None, &status), wanted, "{status}");
    }
}

#[test]
fn each_result_of_a_start_has_an_answer() {
    let loading = json!([condition("Previewing", "False", "Loading", 2)]);
    for (preview, loaded, wanted) in [
        (preview("ACTIVE", START, 2), Some(EARLIER), "running"),
        (preview("ACTIVE", START, 2), Some(START), "done"),
        (preview("ACTIVE", START, 1), None, "ABORTED UPDATED"),
        (preview("SUSPENDED", START, 2), None, "ABORTED SUSPENDED"),
        (suspended("LoadingFailed"), None, "UNAVAILABLE LOADING_FAILED"),
        (suspended("NoReplicas"), Some(EARLIER), "UNAVAILABLE NO_REPLICAS"),
        (suspended("TooMany"), None, "RESOURCE_EXHAUSTED TOO_MANY"),
        (suspended("PolicyNotFound"), None, "FAILED_PRECONDITION POLICY_NOT_FOUND"),
        (suspended("CompileError"), None, "FAILED_PRECONDITION COMPILE_ERROR"),
        (suspended("Updated"), None, "ABORTED UPDATED"),
        (suspended("Expired"), None, "ABORTED EXPIRED"),
        (preview("ACTIVE", LATER, 2), Some(EARLIER), "ABORTED REPLACED"),
    ] {
        let status = json!({"previewMetadata": preview, "previewedStartTime": loaded, "conditions": loading});
        let found = progress_of(Effect::StartPreview, "ClusterPolicyExperiment", false, Some(START), &status);
        assert_eq!(found, wanted, "{status}");
    }
    let found = progress_of(Effect::StartPreview, "ClusterPolicyExperiment", false, None, &Value::Null);
    assert_eq!(found, "ABORTED REPLACED", "the operation of an older version has no time");
}

#[test]
fn a_start_in_progress_says_what_it_waits_for() {
    let replicas = "every replica of the policy server to load it";
    for (message, wanted) in [(None, replicas.to_owned()), (Some("1 of 2".to_owned()), format!("{replicas}: 1 of 2"))] {
        assert_eq!(started(StartProgress::Running(message), WaitsFor::Replicas), Progress::Running(wanted));
    }
}

#[test]
fn each_result_of_a_stop_has_an_answer() {
    let previewing = |reason: &str| json!([condition("Previewing", "False", reason, 2)]);
    for (preview, conditions, wanted) in [
        (preview("SUSPENDED", EARLIER, 2), previewing("LoadingFailed"), "running"),
        (preview("SUSPENDED", EARLIER, 2), previewing("Suspended"), "done"),
        // A later start has replaced the stop.
        (preview("ACTIVE", LATER, 2), previewing("Loading"), "done"),
    ] {
        let status = json!({"previewMetadata": preview, "conditions": conditions});
        let found = progress_of(Effect::StopPreview, "ClusterPolicyExperiment", false, Some(START), &status);
        assert_eq!(found, wanted, "{status}");
    }
}

#[test]
fn a_creation_with_auto_start_waits_for_every_replica() {
    let refused = json!([condition("Accepted", "False", "TooMany", 2)]);
    for (auto_start, status, wanted) in [
        (false, json!(null), "done"),
        (false, json!({"conditions": [condition("Accepted", "True", "Accepted", 2)]}), "done"),
        (false, json!({"conditions": refused}), "FAILED_PRECONDITION TOO_MANY"),
        (true, json!(null), "running"),
        (true, json!({"conditions": refused}), "FAILED_PRECONDITION TOO_MANY"),
        (true, json!({"previewMetadata": preview("ACTIVE", START, 1), "previewedStartTime": START}), "running"),
        (true, json!({"previewMetadata": preview("ACTIVE", START, 2), "previewedStartTime": EARLIER}), "running"),
        (true, json!({"previewMetadata": preview("ACTIVE", START, 2), "previewedStartTime": START}), "done"),
        (true, json!({"previewMetadata": suspended("Expired"), "previewedStartTime": START}), "done"),
        (true, json!({"previewMetadata": suspended("NoReplicas")}), "UNAVAILABLE NO_REPLICAS"),
        (true, json!({"previewMetadata": preview("SUSPENDED", START, 2)}), "ABORTED SUSPENDED"),
    ] {
        for effect in [Effect::Create, Effect::Update] {
            let found = progress_of(effect, "ClusterPolicyExperiment", auto_start, None, &status);
            assert_eq!(found, wanted, "{effect:?} {status}");
        }
    }
}

#[test]
fn only_the_object_of_the_operation_counts() {
    let mut awaited = AwaitedEffect {
        effect: Effect::StartPreview,
        policy: "cluster.p".parse().unwrap(),
        experiment: Some("x".to_owned()),
        uid: "u".into(),
        version: "2".into(),
        start: Some(time(START)),
    };
    let other: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment",
        "metadata": {"name": "x", "uid": "another", "generation": 2},
        "spec": {"policyRef": {"name": "p"}, "policy": {"program": {"cel": {"validations": []}}}},
        "status": {"previewMetadata": preview("ACTIVE", START, 2), "previewedStartTime": START},
    }))
    .unwrap();
    for object in [None, Some(&other)] {
        assert_eq!(describe(compute(&awaited, object).unwrap()), "NOT_FOUND RESOURCE_NOT_FOUND");
    }
    awaited.effect = Effect::Delete;
    assert_eq!(compute(&awaited, Some(&other)).unwrap(), Progress::Done);
    awaited.uid = "another".into();
    assert_eq!(describe(compute(&awaited, Some(&other)).unwrap()), "running");
}
