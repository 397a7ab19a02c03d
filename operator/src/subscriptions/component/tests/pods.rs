use proviso_crds::UpdateResult;

use super::*;

/// Stores an object, or a list, at this path in the API server.
async fn store(shared: &Shared, path: &str, object: &Value) {
    let request = http::Request::put(path).body(serde_json::to_vec(object).unwrap()).unwrap();
    shared.context.client.request::<Value>(request).await.unwrap();
}

/// Stores the pods of the component, each with its name as uid and the status of its condition `Ready`.
async fn store_pods(shared: &Shared, pods: &[(&str, &str)]) {
    let pod = |(name, ready): &(&str, &str)| {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "collector", "uid": "set", "controller": true,
        });
        json!({
            "metadata": {"name": name, "uid": name, "ownerReferences": [owner]},
            "spec": {"nodeName": "node", "containers": [{"name": "collector"}]},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-28T10:00:00Z"}]},
        })
    };
    let items: Vec<_> = pods.iter().map(pod).collect();
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": items});
    store(shared, "/api/v1/namespaces/team/pods", &list).await;
}

/// Stores a subscription with a command, and the workload of its component.
async fn subscription_with_command(api: &MockApi, shared: &Shared) -> Arc<PolicySubscription> {
    let set = json!({
        "metadata": {"uid": "set"},
        "spec": {"serviceName": "collector", "selector": {"matchLabels": {"app": "collector"}}, "template": {}},
    });
    store(shared, "/apis/apps/v1/namespaces/team/statefulsets/collector", &set).await;
    let object = json!({
        "metadata": {"name": "collector", "namespace": "team", "uid": "sub"},
        "spec": {
            "component": {"kind": "StatefulSet", "name": "collector"}, "policies": [{"id": "cluster.a"}],
            "delivery": {"configMap": "policies", "notify": {"exec": {"command": ["/bin/reconfigure"]}}},
        },
    });
    Arc::new(api.put(&shared.context.caches.subscriptions, object).0.clone().unwrap())
}

fn names(pods: &[&str]) -> BTreeSet<String> {
    pods.iter().map(|&pod| pod.to_owned()).collect()
}

#[tokio::test]
async fn a_pod_that_starts_during_an_update_is_not_forgotten_before_it_gets_the_policies_again() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let read = subscription_with_command(&api, &shared).await;
    let starting = Starting::default();
    let component = ClusterComponent::new(Arc::clone(&shared), read, Arc::clone(&starting)).unwrap();
    let mut deliveries = Deliveries::restore(component, None).await.unwrap();
    store_pods(&shared, &[("p", "False")]).await;
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    assert_eq!(deliveries.component().started_pods().await.unwrap(), names(&[]));
    // A failed notification knows no pods.
    api.refuse("GET pods", 500);
    deliveries.want(desired(&[("a", 2, false)]));
    deliveries.advance().await.unwrap();
    assert_eq!(deliveries.last().unwrap().result, Some(UpdateResult::Failed));
    assert_eq!(*lock(&starting), names(&["p"]));
    // An error ends the session, and the next one has the pods.
    let read = Arc::new(stored_subscription(&shared).await);
    let component = ClusterComponent::new(Arc::clone(&shared), read, Arc::clone(&starting)).unwrap();
    let mut deliveries = Deliveries::restore(component, None).await.unwrap();
    store_pods(&shared, &[("other", "True"), ("p", "True")]).await;
    let started = deliveries.component().started_pods().await.unwrap();
    assert_eq!(started, names(&["p"]));
    api.refuse("PATCH policysubscriptions/collector/status", 500);
    deliveries.resend().await.unwrap_err();
    assert!(deliveries.component().is_waiting_for_pods());
    deliveries.resend().await.unwrap();
    deliveries.component().forget_pods(&started);
    assert!(!deliveries.component().is_waiting_for_pods());
}

#[tokio::test]
async fn pods_that_were_not_ready_at_the_last_update_of_an_earlier_operator_are_found() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let read = subscription_with_command(&api, &shared).await;
    store_pods(&shared, &[("late", "True"), ("starting", "False")]).await;
    let starting = |updated: &'static str, read: &Arc<PolicySubscription>| {
        let (shared, read) = (Arc::clone(&shared), Arc::clone(read));
        async move {
            let component = ClusterComponent::new(shared, read, Starting::default()).unwrap();
            component.find_starting_pods(updated.parse().unwrap()).await.unwrap();
            lock(&component.starting).clone()
        }
    };
    assert_eq!(starting("2026-11-28T09:00:00Z", &read).await, names(&["late", "starting"]));
    assert_eq!(starting("2026-11-28T11:00:00Z", &read).await, names(&["starting"]));
    // Without a command, no pod is notified.
    let mut silent = (*read).clone();
    silent.spec.delivery.notify = None;
    assert_eq!(starting("2026-11-28T09:00:00Z", &Arc::new(silent)).await, names(&[]));
}
