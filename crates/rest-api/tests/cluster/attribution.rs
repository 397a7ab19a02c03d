//! Writes are attributed to the caller: by an annotation, or by impersonation.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use proviso_crds::names::CHANGED_BY;
use proviso_rest_api::kubernetes::AllowAll;
use proviso_rest_api::{Caller, Change, Code, PolicyStore, Preview};
use serde_json::json;

use crate::test_api::{TestApi, caller, spec};

fn change(message: &str) -> Change {
    Change {
        spec: serde_json::from_value(spec(message)).unwrap(),
        annotations: BTreeMap::from([("owner".to_owned(), "a".to_owned())]),
        auto_start: false,
        preview_settings: proviso_crds::PreviewSettings::default(),
        ttl: proviso_crds::DEFAULT_TTL.to_owned(),
    }
}

#[tokio::test]
async fn each_write_records_its_caller() {
    let api = TestApi::start("api-attribution").await;
    let (name, right) = api.create_prepared_pair("a").await;
    let (ann, bob, carl) = (caller("ann"), caller("bob"), caller("carl"));
    let store = &*api.store;
    let of_policy = async || api.policies().get("a").await.unwrap().annotations().get(CHANGED_BY).cloned();
    let of_experiment = async || api.experiments().get("a").await.unwrap().annotations().get(CHANGED_BY).cloned();

    let policy = store.policy(None, &name.policy).await.unwrap();
    let updated = store.update_policy(Some(&ann), &name.policy, &policy.meta.revision, change("other")).await.unwrap();
    assert_eq!(of_policy().await.as_deref(), Some("ann"));
    // The next write replaces it, and a caller who is not authenticated removes it.
    let updated = store.update_policy(Some(&bob), &name.policy, &updated.meta.revision, change("third")).await.unwrap();
    assert_eq!(of_policy().await.as_deref(), Some("bob"));
    store.update_policy(None, &name.policy, &updated.meta.revision, change("old")).await.unwrap();
    assert_eq!(of_policy().await, None);

    // A start changes only the status, which has no place for it.
    store.preview(Some(&carl), &name, Preview::Start).await.unwrap();
    assert_eq!(of_experiment().await.as_deref(), Some("carl"));
    let read = api.get(&format!("/v1/{name}")).await;
    assert_eq!((&read["etag"], read.get("annotations")), (&json!(right.etag), None), "{read}");
    let forged = json!({"annotations": {CHANGED_BY: "root"}});
    let (status, refused) = api.call(axum::http::Method::PATCH, &format!("/v1/{name}"), forged).await;
    assert!(status == 400 && refused.to_string().contains("reserved"), "{refused}");

    store.commit(Some(&ann), &name, &right).await.unwrap();
    assert_eq!((api.message(&name).await.as_str(), of_policy().await.as_deref()), ("new", Some("ann")));
}

#[tokio::test]
async fn a_store_that_impersonates_its_callers_writes_with_their_permissions() {
    let api = TestApi::start("api-impersonation").await;
    let (name, right) = api.create_prepared_pair("a").await;
    let store = api.store_with(AllowAll, true);
    let ann = Caller {
        groups: vec!["authors".to_owned()],
        extra: BTreeMap::from([("example.com/scope".to_owned(), vec!["write".to_owned()])]),
        ..caller("ann")
    };
    let revision = async || store.policy(None, &name.policy).await.unwrap().meta.revision;
    // The API server knows the caller.
    let refused = store.update_policy(Some(&ann), &name.policy, &revision().await, change("x")).await.unwrap_err();
    assert!(refused.code == Code::PermissionDenied && refused.message.contains("\"ann\""), "{refused}");
    let refused = store.commit(Some(&ann), &name, &right).await.unwrap_err();
    assert!(refused.code == Code::PermissionDenied && refused.message.contains("\"ann\""), "{refused}");
    assert_eq!((api.intent(&name).await, api.message(&name).await.as_str()), (None, "old"));

    let verbs = "--verb=update,delete";
    let resources = "--resource=clusterpolicies.proviso.dev,clusterpolicyexperiments.proviso.dev";
    api.kubectl.run(&["create", "clusterrole", "authors", verbs, resources]).await.unwrap();
    api.kubectl
        .run(&["create", "clusterrolebinding", "authors", "--clusterrole=authors", "--group=authors"])
        .await
        .unwrap();
    proviso_e2e::until("the permission to count", std::time::Duration::from_mins(1), async || {
        let revision = revision().await;
        Ok(store.update_policy(Some(&ann), &name.policy, &revision, change("mine")).await?)
    })
    .await
    .unwrap();
    assert_eq!(api.message(&name).await, "mine");
    assert_eq!(api.policies().get("a").await.unwrap().annotations().get(CHANGED_BY), None);
    // The permission to commit does not include the permission to write the status, so the store writes the intent as itself.
    store.commit(Some(&ann), &name, &right).await.unwrap();
    assert_eq!(api.message(&name).await, "new");
    assert!(api.experiments().get_opt("a").await.unwrap().is_none());
}
