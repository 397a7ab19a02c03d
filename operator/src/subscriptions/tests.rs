use kube::Api;
use kube::runtime::watcher::Event;
use proviso_crds::UpdateResult;
use proviso_crds::names::{CONFIGURATION, POINT_LABEL};
use serde_json::{Value, json};

use super::*;
use crate::mock_api::MockApi;

/// The bound of a wait for a task.
const TIMEOUT: Duration = Duration::from_secs(20);

fn put(api: &MockApi, shared: &Shared, name: &str, uid: &str, policy: &str) -> Name {
    let object = json!({
        "metadata": {"name": name, "namespace": "team", "uid": uid, "generation": 1},
        "spec": {
            "component": {"kind": "Deployment", "name": name}, "policies": [{"id": format!("cluster.{policy}")}],
            "delivery": {"configMap": name},
        },
    });
    cache::name(&*api.put(&shared.context.caches.subscriptions, object))
}

fn put_policy(api: &MockApi, shared: &Shared, name: &str, content: &Value) {
    let condition = json!({
        "type": "Live", "status": "True", "reason": "Live", "message": "", "lastTransitionTime": "2026-11-28T00:00:00Z",
    });
    let revision = json!({
        "metadata": {
            "name": format!("cluster.{name}-1"), "namespace": "proviso", "labels": {POINT_LABEL: CONFIGURATION},
        },
        "spec": {
            "policyServer": "", "enabled": true,
            "policyRef": {"kind": "ClusterPolicy", "name": name, "uid": "u", "generation": 1},
            "data": {"configuration": {"configName": name, "content": content}},
        },
        "status": {"conditions": [condition]},
    });
    api.put(&shared.context.caches.revisions, revision);
}

/// Waits until the ConfigMap of a subscription is written.
async fn until_written(shared: &Shared, config_map: &str) {
    let written = async {
        while shared.stores.config_maps.reader().get(config_map, Some("team")).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, written).await.expect(config_map);
}

#[tokio::test]
async fn a_task_ends_with_its_subscription() {
    let (api, running) = (MockApi::default(), Arc::<RwLock<()>>::default());
    let shared = Shared::with_context(api.context());
    let mut controller = Controller::new(Arc::clone(&shared), Arc::clone(&running));
    let name = put(&api, &shared, "collector", "first", "a");
    controller.reconcile(name.clone()).await;
    let first = controller.tasks[&name].task.id();
    controller.reconcile(name.clone()).await;
    assert_eq!(controller.tasks[&name].task.id(), first, "the task goes on");
    until_written(&shared, "collector").await;
    assert!(running.try_write().is_err(), "the task runs");
    // A subscription that was deleted and created again has another task.
    put(&api, &shared, "collector", "second", "a");
    controller.reconcile(name.clone()).await;
    assert_ne!(controller.tasks[&name].task.id(), first);
    assert_eq!(controller.names.keys().collect::<Vec<_>>(), ["second"]);
    assert_eq!(controller.workloads.len(), 1);
    let cached = shared.context.caches.subscriptions.reader().get("collector", Some("team")).unwrap();
    shared.context.caches.subscriptions.apply_event(Event::Delete((*cached).clone()));
    controller.reconcile(name).await;
    assert!(controller.tasks.is_empty() && controller.names.is_empty() && controller.workloads.is_empty());
    assert!(running.try_write().is_ok(), "no task runs any more");
}

#[tokio::test]
async fn a_part_of_a_deleted_subscription_concerns_the_one_with_its_name() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut controller = Controller::new(Arc::clone(&shared), Arc::default());
    for name in ["collector", "other"] {
        let name = put(&api, &shared, name, &format!("uid-{name}"), "a");
        controller.reconcile(name).await;
    }
    for (uid, namespace, part, expected) in [
        ("uid-collector", "team", "renamed", &["collector"][..]),
        ("gone", "team", "collector", &["collector"]),
        ("gone", "team", "other-1", &["other"]),
        ("gone", "team", "collector-x", &[]),
        ("gone", "edge", "collector", &[]),
    ] {
        let part = (Some(namespace.to_owned()), part.to_owned());
        let concerned: Vec<_> = controller.of_part(uid, &part).iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(concerned, expected, "{uid} {part:?}");
    }
}

#[tokio::test]
async fn the_tasks_end_with_the_controller() {
    let (api, running) = (MockApi::default(), Arc::<RwLock<()>>::default());
    let shared = Shared::with_context(api.context());
    let mut controller = Controller::new(Arc::clone(&shared), Arc::clone(&running));
    for name in ["a", "b", "c"] {
        let name = put(&api, &shared, name, name, "memory");
        controller.reconcile(name).await;
    }
    until_written(&shared, "c").await;
    drop(controller);
    // The next leadership waits for this lock.
    drop(tokio::time::timeout(TIMEOUT, running.write()).await.expect("a task still runs"));
}

#[tokio::test]
async fn a_change_of_a_policy_wakes_the_subscriptions_that_select_it() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut controller = Controller::new(Arc::clone(&shared), Arc::default());
    for (name, policy) in [("one", "a"), ("two", "b")] {
        let name = put(&api, &shared, name, name, policy);
        controller.reconcile(name).await;
    }
    until_written(&shared, "one").await;
    until_written(&shared, "two").await;
    api.calls();
    put_policy(&api, &shared, "a", &json!({"min": 1}));
    controller.update_catalog();
    let mut calls: Vec<String> = Vec::new();
    let delivered = async {
        while !calls.iter().any(|call| call.starts_with("PUT configmaps/one")) {
            calls.extend(api.calls());
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, delivered).await.expect("no delivery");
    assert!(calls.iter().all(|call| !call.contains("configmaps/two")), "{calls:?}");
    // The same revisions again, as after a change of a status, wake nobody.
    let before = shared.catalog.borrow().clone();
    controller.update_catalog();
    assert!(before.changes(&shared.catalog.borrow()).is_empty());
}

/// Waits until another update than `before` is acknowledged. Returns its id.
async fn until_updated(shared: &Shared, name: &str, before: Option<&str>) -> String {
    let api = Api::<PolicySubscription>::namespaced(shared.context.client.clone(), "team");
    let updated = async {
        loop {
            let status = api.get(name).await.unwrap().status.unwrap_or_default();
            let last = status.last_update.filter(|last| last.result == Some(UpdateResult::Acknowledged));
            if let Some(last) = last.filter(|last| Some(&*last.id) != before) {
                return last.id;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, updated).await.expect("no update")
}

#[tokio::test]
async fn another_component_gets_all_policies_also_after_a_restart() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    // The workloads do not exist, so that no command runs.
    let put = |generation: i64, workload: &str| {
        let object = json!({
            "metadata": {"name": "collector", "namespace": "team", "uid": "sub", "generation": generation},
            "spec": {
                "component": {"kind": "StatefulSet", "name": workload}, "policies": [{"id": "cluster.a"}],
                "delivery": {"configMap": "collector", "notify": {"exec": {"command": ["/bin/reconfigure"]}}},
            },
        });
        cache::name(&*api.put(&shared.context.caches.subscriptions, object))
    };
    put_policy(&api, &shared, "a", &json!({"min": 1}));
    let mut controller = Controller::new(Arc::clone(&shared), Arc::default());
    controller.update_catalog();
    controller.reconcile(put(1, "one")).await;
    let first = until_updated(&shared, "collector", None).await;
    controller.reconcile(put(2, "two")).await;
    let second = until_updated(&shared, "collector", Some(&first)).await;
    drop(controller);
    // No operator has seen this change.
    let name = put(3, "three");
    let mut controller = Controller::new(Arc::clone(&shared), Arc::default());
    controller.reconcile(name).await;
    until_updated(&shared, "collector", Some(&second)).await;
}

#[tokio::test]
async fn a_task_goes_on_after_its_status_was_not_served() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    put_policy(&api, &shared, "a", &json!({"min": 1}));
    let mut controller = Controller::new(Arc::clone(&shared), Arc::default());
    controller.update_catalog();
    // The write before the update, and the one of its result.
    for _ in 0..2 {
        api.refuse("PATCH policysubscriptions/collector/status", 404);
    }
    let name = put(&api, &shared, "collector", "sub", "a");
    controller.reconcile(name).await;
    until_updated(&shared, "collector", None).await;
}
