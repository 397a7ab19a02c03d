//! Long-running operations, which are ConfigMaps in the namespace of the operator.

use axum::http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{PreviewMetadata, StopCause};
use proviso_rest_api::kubernetes::operations::{OPERATION, OPERATION_DONE};
use proviso_rest_api::kubernetes::{Access, Authorizer};
use proviso_rest_api::{Caller, Code, Error, ExperimentName, OperationResult, PolicyStore};
use serde_json::{Value, json};

use crate::test_api::{NAMESPACE, TestApi, caller, spec};

fn maps(api: &TestApi) -> Api<ConfigMap> {
    Api::namespaced(api.client.clone(), NAMESPACE)
}

async fn preview(api: &TestApi, name: &ExperimentName) -> PreviewMetadata {
    api.status(name).await.preview_metadata.unwrap()
}

/// Reports that every replica has loaded the last start.
async fn report_loaded(api: &TestApi, name: &ExperimentName) {
    api.report(name, json!({"previewedStartTime": preview(api, name).await.start_time})).await;
}

/// Suspends the preview, as the operator does when a start fails.
async fn suspend(api: &TestApi, name: &ExperimentName, reason: &str) {
    let before = preview(api, name).await;
    let cause = StopCause { reason: reason.to_owned(), message: "by a test".to_owned() };
    let stopped = before.clone().stop(before.start_time, Some(cause));
    api.report(name, json!({"previewMetadata": stopped})).await;
}

#[tokio::test]
async fn a_start_and_a_stop_end_when_the_replicas_have_loaded_and_stopped_the_preview() {
    let api = TestApi::start("api-operations").await;
    let (name, _) = api.create_pair("a").await;
    let start = api.post(&format!("/v1/{name}:startPreview")).await;
    assert_eq!(start["done"], false);
    assert_eq!(start["metadata"]["@type"], "type.googleapis.com/proviso.v1.StartPreviewPolicyExperimentMetadata");
    // The condition is from an earlier preview.
    api.report_condition(&name, "Previewing", "True", "Previewing", "every replica evaluates it").await;
    assert_eq!(api.poll(&start).await["done"], false);
    report_loaded(&api, &name).await;
    let started = api.poll(&start).await;
    assert_eq!((&started["done"], &started["response"]["previewMetadata"]["state"]), (&json!(true), &json!("ACTIVE")));

    // A stop is done when the replicas have stopped. The result of the start stays.
    let stop = api.post(&format!("/v1/{name}:stopPreview")).await;
    assert_eq!(stop["done"], false);
    api.report_condition(&name, "Previewing", "False", "Stopping", "the replicas stop").await;
    assert_eq!(api.poll(&stop).await["done"], false);
    api.report_condition(&name, "Previewing", "False", "Suspended", "it is stopped").await;
    let stopped = api.poll(&stop).await;
    assert_eq!(
        (&stopped["done"], &stopped["response"]["previewMetadata"]["state"]),
        (&json!(true), &json!("SUSPENDED"))
    );
    assert_eq!(api.poll(&start).await, started);

    // Another process has the same operations.
    let other = api.store_with(proviso_rest_api::kubernetes::AllowAll, false);
    let id = start["name"].as_str().unwrap().strip_prefix("operations/").unwrap();
    let stored = other.operation(None, id).await.unwrap();
    assert_eq!(stored.result, Some(OperationResult::Response(started["response"].clone())));
    let again = other.finish_operation(id, OperationResult::Error(json!({"code": 10}))).await.unwrap();
    assert_eq!(again, stored, "the first result stays");
    let all = maps(&api).list(&ListParams::default().labels(OPERATION)).await.unwrap().items;
    let done = all.iter().filter(|map| map.labels().contains_key(OPERATION_DONE)).count();
    // Two creations, a start and a stop. No operator rolls out the policy, so its creation never ends.
    assert_eq!((all.len(), done), (4, 3));
}

#[tokio::test]
async fn a_failed_start_keeps_its_error_although_a_later_start_works() {
    let api = TestApi::start("api-operations-failed").await;
    let (name, _) = api.create_pair("a").await;
    let first = api.post(&format!("/v1/{name}:startPreview")).await;
    let first_start = preview(&api, &name).await.start_time;
    suspend(&api, &name, "NoReplicas").await;
    // The first start was not polled. The second one begins within the same second.
    let second = api.post(&format!("/v1/{name}:startPreview")).await;
    let now = preview(&api, &name).await;
    assert!(now.start_time > first_start && now.stop_cause.is_none(), "{now:?}");
    report_loaded(&api, &name).await;
    let failed = api.poll(&first).await;
    assert_eq!((&failed["done"], &failed["error"]["code"]), (&json!(true), &json!(14)), "{failed}");
    assert_eq!(failed["error"]["details"][0]["reason"], "NO_REPLICAS");
    assert_eq!(api.poll(&second).await["response"]["name"], name.to_string());

    // A stop before the start was loaded.
    let third = api.post(&format!("/v1/{name}:startPreview")).await;
    api.post(&format!("/v1/{name}:stopPreview")).await;
    assert_eq!(api.poll(&third).await["error"]["details"][0]["reason"], "SUSPENDED");

    // An update of the experiment.
    let fourth = api.post(&format!("/v1/{name}:startPreview")).await;
    report_loaded(&api, &name).await;
    api.ok(Method::PATCH, &format!("/v1/{name}"), json!({"policy": {"spec": spec("newer")}})).await;
    let fifth = api.post(&format!("/v1/{name}:startPreview")).await;
    report_loaded(&api, &name).await;
    for loaded in [fourth, fifth] {
        let loaded = api.poll(&loaded).await;
        assert!(loaded["response"].is_object(), "{loaded}");
    }
}

#[tokio::test]
async fn a_deletion_ends_with_the_deleted_experiment() {
    let api = TestApi::start("api-operations-deletion").await;
    let (name, _) = api.create_pair("a").await;
    let finalizers = |list: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    let experiments = api.experiments();
    experiments.patch("a", &PatchParams::default(), &finalizers(&["proviso.dev/preview"])).await.unwrap();
    let before = api.get(&format!("/v1/{name}")).await;
    let deletion = api.ok(Method::DELETE, &format!("/v1/{name}"), Value::Null).await;
    assert_eq!((&deletion["done"], &api.poll(&deletion).await["done"]), (&json!(false), &json!(false)));
    experiments.patch("a", &PatchParams::default(), &finalizers(&[])).await.unwrap();
    let deleted = api.poll(&deletion).await;
    assert_eq!(deleted["response"]["@type"], "type.googleapis.com/proviso.v1.PolicyExperiment", "{deleted}");
    for field in ["name", "uid", "etag", "policy", "ttl"] {
        assert_eq!(deleted["response"][field], before[field], "{field}");
    }
    // An experiment of the same name has no effect on the operation.
    let again = json!({"policy": {"spec": spec("again")}});
    api.ok(Method::POST, "/v1/policies/cluster.a/experiments?policyExperimentId=a", again).await;
    assert_eq!(api.poll(&deletion).await, deleted);
}

#[tokio::test]
async fn an_operation_is_kept_for_a_day() {
    let api = TestApi::start("api-operations-age").await;
    let (status, body) = api.call(Method::GET, &format!("/v1/operations/{}", "0".repeat(32)), Value::Null).await;
    assert_eq!((status, &body["error"]["details"][0]["reason"]), (404, &json!("RESOURCE_NOT_FOUND")));
    let (name, _) = api.create_pair("a").await;
    let start = api.post(&format!("/v1/{name}:startPreview")).await;
    let map = format!("proviso-operation-{}", start["name"].as_str().unwrap().strip_prefix("operations/").unwrap());
    let object = maps(&api).get(&map).await.unwrap();
    let mut stored: Value = serde_json::from_str(&object.data.unwrap()["operation.json"]).unwrap();
    let created = json!("2026-01-01T00:00:00Z");
    stored["createTime"] = created.clone();
    let mut summary: Value =
        serde_json::from_str(&object.metadata.annotations.unwrap()["proviso.dev/operation-summary"]).unwrap();
    summary["createTime"] = created;
    let annotations = json!({"proviso.dev/operation-summary": summary.to_string()});
    let patch = json!({"metadata": {"annotations": annotations}, "data": {"operation.json": stored.to_string()}});
    maps(&api).patch(&map, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let operation = format!("/v1/{}", start["name"].as_str().unwrap());
    assert_eq!(api.call(Method::GET, &operation, Value::Null).await.0, 404);
    let listed = api.get("/v1/operations?filter=metadata.target=%22policies/cluster.a/experiments/a%22").await;
    assert_eq!(listed["operations"].as_array().unwrap().len(), 1, "only the creation: {listed}");
}

/// An authorizer that allows everything in one namespace, and nothing else.
#[derive(Clone)]
struct OnlyNamespace(&'static str);

impl Authorizer for OnlyNamespace {
    async fn authorize(&self, _: Option<&Caller>, access: &Access) -> Result<(), Error> {
        if access.namespace.as_deref() == Some(self.0) {
            return Ok(());
        }
        Err(Error::new(Code::PermissionDenied, "FORBIDDEN", "no"))
    }
}

#[tokio::test]
async fn a_tenant_reads_the_objects_and_operations_of_its_namespace() {
    let api = TestApi::start("api-tenants").await;
    for namespace in ["team-a", "team-b"] {
        api.kubectl.run(&["create", "namespace", namespace]).await.unwrap();
        let policy = format!("ns.{namespace}.p");
        api.ok(Method::POST, &format!("/v1/policies?policyId={policy}"), json!({"spec": spec("p")})).await;
        let path = format!("/v1/policies/{policy}/experiments?policyExperimentId=e");
        api.ok(Method::POST, &path, json!({"policy": {"spec": spec("e")}})).await;
    }
    api.create_pair("global").await;
    let (store, ann) = (api.store_with(OnlyNamespace("team-a"), false), caller("ann"));
    let ann = Some(&ann);
    assert_eq!(store.policies(ann, Some("team-a")).await.unwrap().len(), 1);
    let experiments = store.experiments_in(ann, "team-a").await.unwrap();
    assert_eq!(experiments[0].name.to_string(), "policies/ns.team-a.p/experiments/e");
    for denied in [
        store.policies(ann, None).await.map(drop),
        store.policies(ann, Some("team-b")).await.map(drop),
        store.experiments(ann, None).await.map(drop),
        store.experiments_in(ann, "team-b").await.map(drop),
    ] {
        assert_eq!(denied.unwrap_err().code, Code::PermissionDenied);
    }

    let operations = store.operations(ann).await.unwrap();
    let mut targets: Vec<_> = operations.iter().map(|operation| operation.awaited.target()).collect();
    targets.sort();
    assert_eq!(targets, ["policies/ns.team-a.p", "policies/ns.team-a.p/experiments/e"]);
    for operation in api.store.operations(None).await.unwrap() {
        let read = store.operation(ann, &operation.id).await;
        let is_own = operation.awaited.policy.namespace() == Some("team-a");
        let read = read.map(|read| read.summary()).map_err(|error| error.code);
        assert_eq!(read, if is_own { Ok(operation) } else { Err(Code::PermissionDenied) });
    }

    // The next owner of the name of the namespace reads no operation of the last one. No controller finishes the deletion of a
    // namespace here, so the operations get the uid of another namespace instead.
    let all = maps(&api).list(&ListParams::default().labels(OPERATION)).await.unwrap().items;
    for map in all.iter().filter(|map| map.annotations().contains_key("proviso.dev/operation-namespace-uid")) {
        let patch = json!({"metadata": {"annotations": {"proviso.dev/operation-namespace-uid": "another"}}});
        maps(&api).patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    assert!(store.operations(ann).await.unwrap().is_empty());
    for operation in operations {
        assert_eq!(store.operation(ann, &operation.id).await.unwrap_err().code, Code::NotFound);
    }
}
