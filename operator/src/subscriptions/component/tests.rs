mod pods;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::core::{PartialObjectMeta, PartialObjectMetaExt as _};
use kube::runtime::watcher::Event;
use proviso_core::configuration::{Audience, ConfigurationPolicy, Desired, Item, Version};
use proviso_crds::names::SUBSCRIPTION_LABEL;
use proviso_delivery::{Deliveries, Next};
use serde_json::{Value, json};

use super::*;
use crate::mock_api::MockApi;

const STATUS: &str = "PATCH policysubscriptions/collector/status (proviso-operator)";

/// Stores a subscription, and returns its component.
fn component(api: &MockApi, shared: &Arc<Shared>, config_map: &str) -> ClusterComponent {
    ClusterComponent::new(Arc::clone(shared), subscription(api, shared, config_map), Starting::default()).unwrap()
}

fn subscription(api: &MockApi, shared: &Arc<Shared>, config_map: &str) -> Arc<PolicySubscription> {
    let object = json!({
        "metadata": {"name": "collector", "namespace": "team", "uid": "sub"},
        "spec": {"scn": "collector", "policies": [{"id": "cluster.a"}], "delivery": {"configMap": config_map}},
    });
    let stored = api.put(&shared.context.caches.subscriptions, object);
    Arc::new(stored.0.clone().unwrap())
}

fn desired(policies: &[(&str, i64, bool)]) -> Desired {
    let items = policies.iter().map(|(name, generation, is_confidential)| {
        let policy = ConfigurationPolicy {
            id: format!("cluster.{name}").parse().unwrap(),
            version: Version::of(*generation),
            config_name: "memory".to_owned(),
            owner: None,
            attributes: BTreeMap::new(),
            is_confidential: *is_confidential,
            audience: Audience::All,
        };
        (policy.id.clone(), Item::new(&policy, &json!({"generation": generation})).unwrap())
    });
    Desired { items: items.collect(), ..Desired::default() }
}

async fn settle(deliveries: &mut Deliveries<ClusterComponent>) {
    while deliveries.advance().await.unwrap() == Next::Again {}
}

/// Returns metadata of an object as the watch delivers it.
fn metadata<O>(name: &str, uid: &str, version: &str, owner: &str) -> PartialObjectMeta<O> {
    let metadata = json!({
        "name": name, "namespace": "team", "uid": uid, "resourceVersion": version,
        "labels": {SUBSCRIPTION_LABEL: "sub"},
        "ownerReferences": [{
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription", "name": "collector", "uid": owner, "controller": true,
        }],
    });
    serde_json::from_value::<kube::core::ObjectMeta>(metadata).unwrap().into_response_partial()
}

#[tokio::test]
async fn an_update_costs_two_writes_of_the_record_and_one_of_the_stored_policies() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    api.calls();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    assert_eq!(api.calls(), [STATUS, "POST configmaps (proviso-operator)", STATUS]);
    // The second write removes the previous body.
    deliveries.want(desired(&[("a", 2, false)]));
    settle(&mut deliveries).await;
    let put = "PUT configmaps/policies (proviso-operator)";
    assert_eq!(api.calls(), [STATUS, put, STATUS, put]);
    settle(&mut deliveries).await;
    assert!(api.calls().is_empty(), "an idle component causes no request");
}

#[tokio::test]
async fn confidential_bodies_are_in_a_secret_that_belongs_to_the_subscription() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false), ("b", 1, true)]));
    settle(&mut deliveries).await;
    let get = |place: &str| {
        let client = shared.context.client.clone();
        let path = format!("/api/v1/namespaces/team/{place}/policies");
        async move {
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            client.request::<Value>(request).await.unwrap()
        }
    };
    let (config_map, secret) = (get("configmaps").await, get("secrets").await);
    assert_eq!(secret["type"], "Opaque");
    let keys = |object: &Value| object["data"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        (keys(&config_map), keys(&secret)),
        (vec!["event".to_owned(), "items.cluster.a".to_owned()], vec!["items.cluster.b".to_owned()])
    );
    for object in [&config_map, &secret] {
        assert_eq!(object["metadata"]["labels"][SUBSCRIPTION_LABEL], "sub");
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&json!("sub"), &json!(true)));
    }
}

#[tokio::test]
async fn an_object_of_somebody_else_is_not_overwritten() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    api.put(
        &shared.stores.config_maps,
        json!({"metadata": {"name": "policies", "namespace": "team", "uid": "other"}, "data": {"key": "value"}}),
    );
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    let error = deliveries.component().check_foreign().await.unwrap_err();
    assert!(matches!(&error, Error::Conflict { name, .. } if name == "policies"), "{error}");
    // Also an object that appears after the check.
    api.calls();
    api.refuse("POST configmaps", 409);
    deliveries.want(desired(&[("a", 1, false)]));
    let _ = deliveries.advance().await;
    let calls = api.calls();
    assert_eq!(calls[..3], [STATUS, "POST configmaps (proviso-operator)", "GET configmaps/policies"]);
    assert!(calls.iter().all(|call| !call.starts_with("PUT")), "{calls:?}");
}

#[tokio::test]
async fn an_object_without_its_label_is_repaired() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    // The watch reports a deletion if the label is gone, and the API server still has the object.
    let known = shared.stores.config_maps.reader().get("policies", Some("team")).unwrap();
    shared.stores.config_maps.apply_event(Event::Delete((*known).clone()));
    api.calls();
    api.refuse("POST configmaps", 409);
    settle(&mut deliveries).await;
    let put = "PUT configmaps/policies (proviso-operator)".to_owned();
    assert!(api.calls().contains(&put));
    assert!(shared.stores.config_maps.reader().get("policies", Some("team")).is_some());
}

#[tokio::test]
async fn a_changed_object_is_read_again_and_a_known_one_is_not() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    api.calls();
    deliveries.component().read_parts().await.unwrap();
    assert!(api.calls().is_empty());
    let known = shared.stores.config_maps.reader().get("policies", Some("team")).unwrap();
    let mut edited = (*known).clone();
    edited.metadata.resource_version = Some("999".to_owned());
    shared.stores.config_maps.apply_event(Event::Apply(edited));
    deliveries.component().read_parts().await.unwrap();
    assert_eq!(api.calls(), ["GET configmaps/policies"]);
    // A catch-up reads each object.
    deliveries.component().read_parts().await.unwrap();
    deliveries.component().forget_parts();
    deliveries.component().read_parts().await.unwrap();
    assert!(api.calls().contains(&"GET configmaps/policies".to_owned()));
}

#[tokio::test]
async fn an_object_that_only_has_the_label_is_not_read() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let component = component(&api, &shared, "policies");
    shared.stores.config_maps.apply_event(Event::Apply(metadata::<ConfigMap>("policies-1", "x", "5", "another")));
    shared.stores.secrets.apply_event(Event::Apply(metadata::<Secret>("policies", "y", "6", "another")));
    api.calls();
    assert!(component.read_parts().await.unwrap().parts.is_empty());
    assert!(api.calls().is_empty());
}

#[tokio::test]
async fn the_record_of_another_leader_is_not_overwritten() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    // Somebody has changed an annotation.
    api.calls();
    api.refuse("PATCH policysubscriptions/collector/status", 409);
    deliveries.resend().await.unwrap();
    assert_eq!(api.calls(), [STATUS, "GET policysubscriptions/collector", STATUS]);
    settle(&mut deliveries).await;
    // Another operator has written another record.
    let other = json!({
        "metadata": {"name": "collector", "namespace": "team"},
        "spec": {"scn": "collector", "policies": [{"id": "cluster.a"}], "delivery": {"configMap": "policies"}},
        "status": {"unconfirmed": ["cluster.z"]},
    });
    api.put(&shared.context.caches.subscriptions, other);
    api.calls();
    api.refuse("PATCH policysubscriptions/collector/status", 409);
    let error = deliveries.resend().await.unwrap_err();
    assert!(matches!(error, Error::Superseded), "{error}");
    assert_eq!(api.calls(), [STATUS, "GET policysubscriptions/collector"]);
}

/// Stores a record as another operator would.
fn put_foreign_record(api: &MockApi, shared: &Shared) {
    let other = json!({
        "metadata": {"name": "collector", "namespace": "team"}, "status": {"unconfirmed": ["cluster.z"]},
    });
    api.put(&shared.context.caches.subscriptions, other);
}

async fn stored_subscription(shared: &Shared) -> PolicySubscription {
    Api::namespaced(shared.context.client.clone(), "team").get("collector").await.unwrap()
}

#[tokio::test]
async fn an_update_of_a_superseded_leader_writes_neither_a_record_nor_policies() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    put_foreign_record(&api, &shared);
    api.calls();
    // The API server refuses the write before the update, and the one of its result.
    for _ in 0..2 {
        api.refuse("PATCH policysubscriptions/collector/status", 409);
    }
    deliveries.want(desired(&[("a", 2, false)]));
    let error = deliveries.advance().await.unwrap_err();
    assert!(matches!(error, Error::Superseded), "{error}");
    let get = "GET policysubscriptions/collector";
    assert_eq!(api.calls(), [STATUS, get, STATUS, get]);
    let status = stored_subscription(&shared).await.status.unwrap();
    assert_eq!(status.unconfirmed, ["cluster.z"]);
    // A leader that is superseded between its record and its policies.
    let part = deliveries.component().read_parts().await.unwrap().parts.remove(0);
    api.calls();
    api.refuse("PUT configmaps/policies", 409);
    let error = deliveries.component().write_part(&part).await.unwrap_err();
    assert!(matches!(error, Error::Superseded), "{error}");
    assert_eq!(api.calls(), ["PUT configmaps/policies (proviso-operator)", "GET configmaps/policies", get]);
}

#[tokio::test]
async fn a_status_that_is_not_served_names_its_remedy() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    api.refuse("PATCH policysubscriptions/collector/status", 404);
    let error = deliveries.resend().await.unwrap_err();
    assert!(matches!(error, Error::StatusNotServed), "{error}");
    assert!(error.to_string().contains("upgrade the CRDs"), "{error}");
}

#[tokio::test]
async fn a_limited_number_of_forged_objects_is_read_and_all_are_deleted() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    for index in 1..=50 {
        let forged = metadata::<ConfigMap>(&format!("policies-{index}"), &format!("forged-{index}"), "", "sub");
        let forged = json!({"metadata": forged.metadata, "data": {"x": "y"}});
        api.put(&shared.stores.config_maps, forged);
    }
    api.calls();
    let stored = deliveries.component().read_parts().await.unwrap();
    assert_eq!(stored.items.len(), 1, "the policies of the component are read");
    assert_eq!((stored.parts.len(), api.calls().len()), (51, 15), "the own object is known");
    settle(&mut deliveries).await;
    let deleted = api.calls().iter().filter(|call| call.starts_with("DELETE configmaps/policies-")).count();
    assert_eq!(deleted, 50);
    assert_eq!(deliveries.component().read_parts().await.unwrap().parts.len(), 1);
}

#[tokio::test]
async fn annotations_of_others_are_read_before_a_write_and_not_kept_in_memory() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false)]));
    settle(&mut deliveries).await;
    let annotated = json!({"metadata": {"name": "policies", "namespace": "team", "annotations": {"by": "another"}}});
    let cached = api.put(&shared.stores.config_maps, annotated);
    assert_eq!(cached.metadata.annotations, Some(BTreeMap::new()));
    api.calls();
    deliveries.want(desired(&[("a", 2, false)]));
    settle(&mut deliveries).await;
    // The data once, because the object has changed, and the annotations before each of the two writes.
    let reads = api.calls().iter().filter(|call| *call == "GET configmaps/policies").count();
    assert_eq!(reads, 3);
}

#[tokio::test]
async fn another_name_of_the_config_map_moves_the_stored_policies() {
    let api = MockApi::default();
    let shared = Shared::with_context(api.context());
    let mut deliveries = Deliveries::restore(component(&api, &shared, "policies"), None).await.unwrap();
    deliveries.want(desired(&[("a", 1, false), ("b", 1, true)]));
    settle(&mut deliveries).await;
    let renamed = subscription(&api, &shared, "others");
    deliveries.component_mut().set_subscription(renamed);
    api.calls();
    deliveries.component().rename_parts().await.unwrap();
    assert_eq!(
        api.calls(),
        [
            "GET secrets/policies",
            "POST secrets (proviso-operator)",
            "DELETE secrets/policies",
            "GET configmaps/policies",
            "POST configmaps (proviso-operator)",
            "DELETE configmaps/policies",
        ]
    );
    // The watch still has the old objects.
    settle(&mut deliveries).await;
    assert!(api.calls().is_empty(), "the moved policies are those that must be stored");
}
