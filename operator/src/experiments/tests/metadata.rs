//! Starts by an older version of the API, which leaves the end and the stop cause of an earlier start in the metadata.

use super::*;

/// Returns the status after a start by an older version of the API. `cause` is the reason of an earlier stop.
fn started_by_older_api(state: &str, cause: &str) -> Value {
    let mut status = preview(state);
    status["previewMetadata"]["expireTime"] = "2026-01-15T00:00:00Z".into();
    status["previewMetadata"]["stopCause"] = json!({"reason": cause, "message": "of an earlier start"});
    status
}

#[tokio::test]
async fn the_end_of_an_earlier_start_does_not_suspend_a_preview() {
    let cluster = Cluster::new(&started_by_older_api("ACTIVE", "Expired"));
    let reports = [report(0, "Loaded", 0), report(1, "Loaded", 0)];
    cluster.write_candidate(candidate(Some(START), true, &prepared(), &reports));
    assert_eq!(cluster.reconcile().await, ["POST events (Previewing)".to_owned(), status_of_operator()]);
    assert_eq!(cluster.preview(), (Some(0), "True Previewing".to_owned()));

    // An older version does not record that a preview was loaded: a failure does not suspend it.
    let cluster = Cluster::new(&started_by_older_api("ACTIVE", "Expired"));
    let failed = condition("Initialized", "False", "CompileError", "no such thing", 1);
    cluster.write_candidate(candidate(Some(START), true, &failed, &[]));
    assert_eq!(cluster.reconcile().await, ["POST events (CompileError)".to_owned(), status_of_operator()]);
    assert_eq!(cluster.condition(ConditionType::Previewing), "False NotInitialized");
}

#[tokio::test]
async fn the_cause_of_an_earlier_stop_is_not_that_of_a_stop_by_a_caller() {
    let mut current = preview("SUSPENDED");
    current["previewMetadata"]["stopCause"] = json!({"reason": "NoReplicas", "message": "of this start"});
    for (status, is_started) in [(current, true), (started_by_older_api("SUSPENDED", "NoReplicas"), false)] {
        let cluster = Cluster::new(&status);
        let mut experiment = experiment(&status);
        experiment["spec"]["autoStart"] = true.into();
        cluster.api.put(&cluster.context.caches.cluster_experiments, experiment);
        let calls = cluster.reconcile().await;
        if is_started {
            let event = "POST events (PreviewStarted)".to_owned();
            assert_eq!(calls, [format!("PATCH {EXPERIMENT}/status"), event]);
        } else {
            assert_eq!(calls, [status_of_operator()]);
            assert_eq!(cluster.message(), "generation 1 was stopped by a caller");
        }
    }
}

#[tokio::test]
async fn the_cause_of_a_stop_by_the_operator_counts_for_a_start_by_an_older_api() {
    let cluster = Cluster::without_policy(&started_by_older_api("ACTIVE", "Expired"));
    cluster.reconcile().await;
    let metadata = cluster.status().preview_metadata.unwrap();
    assert_eq!(metadata.expire_time.unwrap().0.to_string(), END);
    assert_eq!(metadata.stop_cause.unwrap().reason, "PolicyNotFound");
    cluster.reconcile().await;
    let message = cluster.message();
    assert!(message.starts_with("generation 1 is suspended: PolicyNotFound: "), "{message}");
}
