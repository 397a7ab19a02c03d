//! Commits: their candidates, and their completion or their end by the operator.

use proviso_crds::names::COMMITTED_EXPERIMENT;

use super::*;

/// Returns the policy with this expression, and with the record of this commit of the experiment.
fn recording(commit: &str, expression: &str) -> Value {
    let record = json!({"name": "e", "uid": "experiment", "generation": 1, "etag": "\"x\"", "commit": commit});
    let mut policy = policy();
    policy["metadata"]["annotations"] = json!({COMMITTED_EXPERIMENT: record.to_string()});
    policy["spec"]["program"]["cel"]["validations"][0]["expression"] = expression.into();
    policy
}

/// Returns the calls that abort a commit: the mark on the policy, the Event, and the removal of the intent.
fn abort() -> [String; 3] {
    let event = "POST events (CommitAborted)".to_owned();
    [format!("PATCH {POLICY}/status"), event, format!("PATCH {EXPERIMENT}/status")]
}

#[tokio::test]
async fn a_commit_gets_a_candidate_that_is_prepared_and_not_previewed() {
    let cluster = Cluster::new(&commit_intent());
    assert_eq!(cluster.reconcile().await, [status_of_operator(), "POST policyrevisions".to_owned()]);
    let created = cluster.context.caches.revisions.reader().get("experiment.cluster.e-1", Some("proviso")).unwrap();
    let created = created.0.as_ref().unwrap();
    assert!(!created.enabled && created.metadata.annotations.is_none(), "{created:?}");
    let conditions = || (cluster.condition(ConditionType::Initialized), cluster.condition(ConditionType::Previewing));
    assert_eq!(conditions(), ("Unknown Preparing".into(), "False NotStarted".into()));
    for (initialized, expected) in [
        (condition("Initialized", "False", "CompileError", "no", 1), "False CompileError"),
        (prepared(), "True Prepared"),
    ] {
        cluster.write_candidate(candidate(None, false, &initialized, &[]));
        cluster.reconcile().await;
        assert_eq!(conditions(), (expected.into(), "False NotStarted".into()));
    }
    assert!(cluster.status().commit.is_some() && cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_commit_that_the_policy_records_is_completed_and_a_forged_record_has_no_effect() {
    let delete = format!("DELETE {EXPERIMENT}");
    for (status, commit, expression, is_completed) in [
        (commit_intent(), "id", "true", true),
        (commit_intent(), "another", "true", false),
        (commit_intent(), "id", "false", false),
        (preview("SUSPENDED"), "id", "true", false),
        (json!({}), "id", "true", false),
    ] {
        let cluster = Cluster::new(&status);
        cluster.api.put(&cluster.context.caches.cluster_policies, recording(commit, expression));
        let calls = cluster.reconcile().await;
        assert_eq!(calls.contains(&delete), is_completed, "{status} {commit} {expression}: {calls:?}");
        assert!(!is_completed || calls == ["POST events (Committed)".to_owned(), delete.clone()], "{calls:?}");
    }
}

#[tokio::test]
async fn a_record_without_the_spec_of_the_experiment_does_not_keep_a_commit_from_being_aborted() {
    let cluster = Cluster::new(&commit_intent());
    cluster.api.put(&cluster.context.caches.cluster_policies, recording("id", "false"));
    cluster.wait_for(Timer::Commit("id".to_owned()));
    assert_eq!(cluster.reconcile().await, abort());
    assert_eq!((cluster.aborted_commit().as_deref(), cluster.status().commit), (Some("id"), None));
    let calls = cluster.reconcile().await;
    assert!(!calls.contains(&format!("DELETE {EXPERIMENT}")), "{calls:?}");
}

#[tokio::test]
async fn a_deleted_experiment_goes_after_its_commit_is_aborted() {
    // The deletion increases the generation.
    let deleted = || {
        let mut deleted = experiment(&commit_intent());
        (deleted["metadata"]["deletionTimestamp"], deleted["metadata"]["generation"]) = (START.into(), 2.into());
        deleted
    };
    let remove_finalizer = format!("PATCH {EXPERIMENT}");
    let cluster = Cluster::new(&json!({}));
    cluster.api.put(&cluster.context.caches.cluster_experiments, deleted());
    // A caller that was faster changes the policy: the experiment stays until the next attempt.
    let mark = format!("PATCH {POLICY}/status");
    cluster.api.refuse(&mark, 409);
    assert!(cluster.try_reconcile().await.is_err());
    assert_eq!(cluster.api.calls(), [mark]);
    assert_eq!(cluster.reconcile().await, abort());
    assert_eq!((cluster.aborted_commit().as_deref(), cluster.status().commit), (Some("id"), None));
    assert_eq!(cluster.reconcile().await, [remove_finalizer.as_str()]);

    // The spec is copied, or there is no policy that a late write could change.
    for cluster in [Cluster::new(&json!({})), Cluster::without_policy(&json!({}))] {
        if cluster.context.caches.cluster_policies.reader().get("a", None).is_some() {
            cluster.api.put(&cluster.context.caches.cluster_policies, recording("id", "true"));
        }
        cluster.api.put(&cluster.context.caches.cluster_experiments, deleted());
        assert_eq!(cluster.reconcile().await, [remove_finalizer.as_str()]);
    }
}

/// Returns a malformed experiment that is being deleted, and has the intent of a commit.
fn malformed() -> Value {
    let mut malformed = experiment(&commit_intent());
    (malformed["metadata"]["deletionTimestamp"], malformed["metadata"]["generation"]) = (START.into(), 3.into());
    malformed["spec"]["policy"]["program"] = json!(7);
    malformed
}

#[tokio::test]
async fn a_malformed_experiment_goes_after_its_commit_is_aborted() {
    let cluster = Cluster::new(&json!({}));
    cluster.api.put(&cluster.context.caches.cluster_experiments, malformed());
    // A caller that was faster changes the policy: the experiment stays until the next attempt.
    let mark = format!("PATCH {POLICY}/status");
    cluster.api.refuse(&mark, 409);
    assert!(cluster.try_reconcile().await.is_err());
    assert_eq!(cluster.api.calls(), ["POST events (Malformed)".to_owned(), mark]);
    assert_eq!(cluster.reconcile().await, abort());
    assert_eq!(cluster.aborted_commit().as_deref(), Some("id"));
    assert_eq!(cluster.reconcile().await, [format!("PATCH {EXPERIMENT}")], "the finalizer is removed");

    // Without a policy, there is nothing that a late write could change.
    let cluster = Cluster::without_policy(&json!({}));
    cluster.api.put(&cluster.context.caches.cluster_experiments, malformed());
    assert_eq!(cluster.reconcile().await, ["POST events (Malformed)".to_owned(), format!("PATCH {EXPERIMENT}")]);
}

#[tokio::test]
async fn the_mark_of_the_commit_of_a_malformed_experiment_stays_until_that_commit_is_over() {
    let cluster = Cluster::new(&commit_intent());
    let mut other = malformed();
    (other["metadata"]["name"], other["metadata"]["uid"]) = ("f".into(), "other".into());
    other["status"]["commit"]["id"] = "other".into();
    cluster.api.put(&cluster.context.caches.cluster_experiments, other);
    let mut marked = policy();
    marked["status"]["abortedCommit"] = "other".into();
    cluster.api.put(&cluster.context.caches.cluster_policies, marked);
    cluster.wait_for(Timer::Commit("id".to_owned()));
    assert_eq!(cluster.try_reconcile().await.unwrap(), Action::requeue(RETRY));
    assert!(cluster.api.calls().is_empty());
}

#[tokio::test]
async fn an_abandoned_commit_is_marked_on_the_policy_before_its_intent_is_removed() {
    let cluster = Cluster::new(&commit_intent());
    cluster.write_candidate(candidate(None, false, &prepared(), &[]));
    cluster.reconcile().await;
    let mark = format!("PATCH {POLICY}/status");
    // A caller that was faster changes the policy: the mark fails, and the intent stays.
    cluster.wait_for(Timer::Commit("id".to_owned()));
    cluster.api.refuse(&mark, 409);
    assert!(cluster.try_reconcile().await.is_err());
    assert_eq!((cluster.api.calls(), cluster.status().commit.is_some()), (vec![mark.clone()], true));

    let (event, remove) = ("POST events (CommitAborted)".to_owned(), format!("PATCH {EXPERIMENT}/status"));
    cluster.api.refuse(&remove, 409);
    assert!(cluster.try_reconcile().await.is_err());
    assert_eq!(cluster.api.calls(), [mark, event.clone(), remove.clone()]);
    assert_eq!((cluster.aborted_commit().as_deref(), cluster.status().commit.is_some()), (Some("id"), true));
    // The policy is marked already.
    assert_eq!(cluster.reconcile().await, [event, remove]);
    assert!(cluster.status().commit.is_none());
    assert_eq!(cluster.reconcile().await, [format!("DELETE {CANDIDATE}"), status_of_operator()]);
}

#[tokio::test]
async fn the_mark_of_a_commit_stays_until_that_commit_is_over() {
    let cluster = Cluster::new(&commit_intent());
    let mut other = experiment(&commit_intent());
    (other["metadata"]["name"], other["metadata"]["uid"]) = ("f".into(), "other".into());
    other["status"]["commit"]["id"] = "other".into();
    let other = cluster.api.put(&cluster.context.caches.cluster_experiments, other);
    let mut marked = policy();
    marked["status"]["abortedCommit"] = "other".into();
    cluster.api.put(&cluster.context.caches.cluster_policies, marked);
    cluster.wait_for(Timer::Commit("id".to_owned()));
    assert_eq!(cluster.try_reconcile().await.unwrap(), Action::requeue(RETRY));
    assert!(cluster.api.calls().is_empty());
    let timers = Timers::default();
    let long_ago = Instant::now().checked_sub(Duration::from_mins(10)).unwrap();
    timers.keep("other", &[Timer::Commit("other".to_owned())], long_ago);
    reconcile::<ClusterPolicyExperiment>(&other, &timers, &cluster.context).await.unwrap();
    let removed = "PATCH clusterpolicyexperiments/f/status".to_owned();
    assert_eq!(cluster.api.calls(), ["POST events (CommitAborted)".to_owned(), removed]);
    assert_eq!(cluster.reconcile().await[0], format!("PATCH {POLICY}/status"));
    assert_eq!(cluster.aborted_commit().as_deref(), Some("id"));
}
