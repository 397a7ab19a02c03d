//! Experiments on request policies: they need no webhook, and cannot change the enforcement point.

use super::*;

/// Returns the spec of a request policy. The mock API server merges it into the spec with `admission`.
fn spec() -> Value {
    json!({"program": {"cel": {"validations": []}}, "admission": null, "request": {"priority": 7}})
}

/// Returns an object with the spec of a request policy at this JSON Pointer.
fn with_spec(mut object: Value, pointer: &str) -> Value {
    *object.pointer_mut(pointer).unwrap() = spec();
    object
}

fn request_experiment(status: &Value) -> Value {
    with_spec(experiment(status), "/spec/policy")
}

#[tokio::test]
async fn the_preview_of_a_request_policy_needs_no_webhook() {
    for is_live in [true, false] {
        let cluster = Cluster::without_policy(&preview("ACTIVE"));
        let caches = &cluster.context.caches;
        cluster.api.put(&caches.cluster_policies, with_spec(policy(), "/spec"));
        cluster.api.put(&caches.cluster_experiments, request_experiment(&preview("ACTIVE")));
        if is_live {
            cluster.api.put(&caches.revisions, with_spec(live(), "/spec/data"));
        }
        let reports = [report(0, "Loaded", 3), report(1, "Loaded", 0)];
        let loaded = candidate(Some(START), true, &prepared(), &reports);
        cluster.write_candidate(with_spec(loaded, "/spec/data"));
        let calls = cluster.reconcile().await;
        assert!(calls.iter().all(|call| !call.contains("webhook")), "{calls:?}");
        assert_eq!(cluster.condition(ConditionType::Previewing), "True Previewing", "{calls:?}");
    }
}

#[tokio::test]
async fn an_experiment_with_another_enforcement_point_is_not_accepted() {
    let cluster = Cluster::new(&preview("ACTIVE"));
    cluster.api.put(&cluster.context.caches.cluster_experiments, request_experiment(&preview("ACTIVE")));
    cluster.reconcile().await;
    let cause = cluster.status().preview_metadata.unwrap().stop_cause.unwrap();
    let message = "spec.policy: has the section `request`, and cluster.a has `admission`";
    assert_eq!(cause.reason, "Invalid", "{cause:?}");
    assert!(cause.message.starts_with(message), "{cause:?}");
    cluster.reconcile().await;
    assert_eq!(cluster.condition(ConditionType::Accepted), "False Invalid");
    assert!(cluster.api.calls().iter().all(|call| !call.starts_with("POST policyrevisions")));
}
