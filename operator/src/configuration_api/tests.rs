use kube::runtime::watcher::Event;

use super::*;
use crate::mock_api::MockApi;

fn revision(name: &str, content: (&str, Value)) -> Value {
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "Live", "message": "",
            "lastTransitionTime": "2026-11-28T00:00:00Z",
        })
    };
    let mut configuration = json!({"configName": name});
    configuration[content.0] = content.1;
    json!({
        "metadata": {
            "name": format!("cluster.{name}-1"), "namespace": "proviso", "resourceVersion": "1",
            "labels": {POINT_LABEL: CONFIGURATION},
        },
        "spec": {
            "policyServer": "default", "enabled": true,
            "policyRef": {"kind": "ClusterPolicy", "name": name, "uid": "u", "generation": 1},
            "data": {"configuration": configuration},
        },
        "status": {"conditions": [condition("Live"), condition("Initialized")]},
    })
}

/// The mock API server has no workloads.
#[tokio::test]
async fn a_template_has_no_body_for_a_component_without_a_workload() {
    let store = ClusterStore::new(MockApi::default().client(), "proviso", Arc::default());
    store.revisions.apply_event(Event::Init);
    for revision in [
        revision("fixed", ("content", json!({"n": 1}))),
        revision("template", ("template", json!({"cel": "{'n': component.labels.size}"}))),
    ] {
        store.revisions.apply_event(Event::InitApply(serde_json::from_value(revision).unwrap()));
    }
    store.revisions.apply_event(Event::InitDone);
    store.subscriptions.apply_event(Event::Init);
    store.subscriptions.apply_event(Event::InitDone);
    let subscription = serde_json::from_value(json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
        "metadata": {"name": "collector", "namespace": "team"},
        "spec": {
            "component": {"kind": "Deployment", "name": "collector"},
            "policies": [{"id": "cluster.fixed"}, {"id": "cluster.template"}],
            "delivery": {"configMap": "collector"},
        },
    }))
    .unwrap();
    let policies: Vec<_> = store.catalog().await.unwrap().policies().cloned().collect();
    let bodies = store.bodies(&policies, Some(&subscription)).await.unwrap();
    assert_eq!(
        policies.iter().map(|policy| policy.id.as_str()).collect::<Vec<_>>(),
        ["cluster.fixed", "cluster.template"]
    );
    assert!(matches!(&bodies[0], Body::Item(_)), "{bodies:?}");
    assert_eq!(bodies[1], Body::Failed(NO_WORKLOAD.to_owned()));
    assert_eq!(store.bodies(&policies[1..], None).await.unwrap(), [Body::Template]);
}
