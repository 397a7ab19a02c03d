//! The objects that the REST API stores and refuses.

use axum::http::Method;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::test_api::{TestApi, spec};

#[tokio::test]
async fn policies_and_experiments_are_stored_as_kubernetes_objects() {
    let api = TestApi::start("api-objects").await;
    let (name, _) = api.create_pair("a").await;
    let path = format!("/v1/{name}");
    let made = api.get(&path).await;
    assert_eq!((&made["policy"]["name"], made.get("previewMetadata")), (&json!("policies/cluster.a"), None));
    assert_eq!((&made["sampleRate"], &made["logging"], &made["ttl"]), (&json!(1.0), &json!("All"), &json!("1209600s")));
    assert!(made["createTime"].is_string() && made["updateTime"].is_string(), "{made}");
    // The experiment does not exist under another policy.
    api.ok(Method::POST, "/v1/policies?policyId=cluster.b", json!({"spec": spec("b")})).await;
    assert_eq!(api.call(Method::GET, "/v1/policies/cluster.b/experiments/a", Value::Null).await.0, 404);

    // startPreview writes the status that the operator reads.
    let started = api.post(&format!("{path}:startPreview")).await;
    assert_eq!(started["done"], false, "no replica has loaded the experiment: {started}");
    let object = api.experiments().get("a").await.unwrap();
    let preview = object.status.unwrap().preview_metadata.unwrap();
    assert_eq!(Some(preview.generation), object.metadata.generation);
    let lived = preview.expire_time.unwrap().0.duration_since(preview.start_time.0);
    assert_eq!(lived.as_secs(), 14 * 24 * 60 * 60);
    let active = "/v1/policies/cluster.a/experiments?filter=preview_metadata.state=ACTIVE";
    assert_eq!(api.get(active).await["policyExperiments"].as_array().unwrap().len(), 1);
    let recent = "/v1/policies/-/experiments?filter=preview_metadata.start_time%3E%3D%222026-01-01T00:00:00Z%22";
    assert_eq!(api.get(recent).await["policyExperiments"].as_array().unwrap().len(), 1);

    // An update suspends the preview, before the operator has written the new state. The reserved annotations of Proviso
    // and kubectl stay, and the API does not show them.
    let annotations =
        json!({"metadata": {"annotations": {"proviso.dev/x": "1", "kubectl.kubernetes.io/y": "2", "a": "b"}}});
    api.experiments().patch("a", &PatchParams::default(), &Patch::Merge(annotations)).await.unwrap();
    let body = json!({"policy": {"spec": {"program": spec("newer")["program"]}}, "annotations": {"c": "d"}});
    let mask = format!("{path}?updateMask=policy.spec.program,annotations");
    let updated = api.ok(Method::PATCH, &mask, body).await;
    assert_eq!(updated["response"]["previewMetadata"]["state"], "SUSPENDED", "{updated}");
    assert_eq!(updated["response"]["annotations"], json!({"c": "d"}));
    let object = api.experiments().get("a").await.unwrap();
    let keys: Vec<_> = object.annotations().keys().map(String::as_str).collect();
    assert_eq!(keys, ["c", "kubectl.kubernetes.io/y", "proviso.dev/x"]);
    assert_eq!(api.get(active).await["policyExperiments"], json!([]));

    // A namespaced policy with its experiment, and objects that the API server refuses.
    api.kubectl.run(&["create", "namespace", "pay"]).await.unwrap();
    api.ok(Method::POST, "/v1/policies?policyId=ns.pay.p", json!({"spec": spec("p")})).await;
    api.ok(Method::POST, "/v1/policies/ns.pay.p/experiments?experimentId=q", json!({"policy": {"spec": spec("q")}}))
        .await;
    let file = json!({"spec": {"program": {"wasm": {"module": "file://m.wasm"}}, "admission": spec("")["admission"]}});
    let (status, refused) = api.call(Method::POST, "/v1/policies?policyId=ns.pay.f", file).await;
    let violation = &refused["error"]["details"][1]["fieldViolations"][0];
    assert_eq!((status, &violation["field"]), (400, &json!("spec.program.wasm.module")), "{refused}");
    let file = json!({"policy": {"spec": {"program": {"wasm": {"module": "file://m.wasm"}}, "admission": spec("")["admission"]}}});
    let (_, refused) = api.call(Method::POST, "/v1/policies/ns.pay.p/experiments?experimentId=f", file).await;
    let violation = &refused["error"]["details"][1]["fieldViolations"][0];
    assert_eq!(violation["field"], "policy.spec.program.wasm.module", "{refused}");
    assert_eq!(api.call(Method::POST, "/v1/policies?policyId=ns.nowhere.p", json!({"spec": spec("p")})).await.0, 404);
    assert_eq!(api.call(Method::POST, "/v1/policies?policyId=ns.pay.p", json!({"spec": spec("p")})).await.0, 409);

    // A list of one namespace has the objects of this namespace.
    let listed = api.get("/v1/policies?namespace=pay").await;
    assert_eq!(listed["policies"].as_array().unwrap().len(), 1, "{listed}");
    let listed = api.get("/v1/policies/-/experiments?namespace=pay").await;
    assert_eq!(listed["policyExperiments"][0]["name"], "policies/ns.pay.p/experiments/q", "{listed}");
    assert_eq!(api.get("/v1/policies/-/experiments?namespace=other").await["policyExperiments"], json!([]));

    // Deleting a policy deletes its experiments, and no others.
    let other = api.call(Method::DELETE, "/v1/policies/ns.pay.p?etag=%22x%22", Value::Null).await;
    assert_eq!(other.0, 409);
    let deleted = api.ok(Method::DELETE, "/v1/policies/ns.pay.p", Value::Null).await;
    assert_eq!(deleted["done"], true, "{deleted}");
    let left = api.get("/v1/policies/-/experiments").await;
    assert_eq!(left["policyExperiments"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(api.get("/v1/policies?pageSize=1").await["policies"][0]["name"], "policies/cluster.a");
}

#[tokio::test]
async fn an_update_of_a_field_does_not_rewrite_the_others() {
    let api = TestApi::start("api-fields").await;
    api.ok(Method::POST, "/v1/policies?policyId=cluster.a", json!({"spec": spec("a")})).await;
    // Another client wrote the numbers and durations in its own way.
    let object = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": "e"},
        "spec": {"policyRef": {"name": "a"}, "policy": spec("b"), "sampleRate": 1, "ttl": "90m"},
    });
    let experiments = api.experiments();
    experiments.patch("e", &PatchParams::apply("owner"), &Patch::Apply(object)).await.unwrap();
    let path = "/v1/policies/cluster.a/experiments/e";
    // The API server fills in the defaults at the first write.
    api.ok(Method::PATCH, path, json!({"annotations": {"a": "0"}})).await;
    let before = api.get(path).await;
    assert_eq!((&before["sampleRate"], &before["ttl"]), (&json!(1.0), &json!("5400s")));
    let read = json!({
        "policy": before["policy"], "sampleRate": before["sampleRate"], "logging": before["logging"], "ttl": before["ttl"],
        "autoStart": false, "annotations": {"a": "1"},
    });
    let updated = api.ok(Method::PATCH, path, read).await;
    assert_eq!(updated["response"]["etag"], before["etag"], "only an annotation has changed: {updated}");

    let body = json!({"sampleRate": 0.25, "logging": "Divergences", "ttl": "7200s"});
    let updated = api.ok(Method::PATCH, &format!("{path}?updateMask=sample_rate,logging,ttl"), body.clone()).await;
    for (field, value) in body.as_object().unwrap() {
        assert_eq!(&updated["response"][field], value, "{updated}");
    }
    assert_ne!(updated["response"]["etag"], before["etag"]);
    let spec = experiments.get("e").await.unwrap().spec.0;
    assert_eq!((spec.preview_settings().sample_rate, spec.ttl.as_str()), (0.25, "2h"));
    let (status, refused) = api.call(Method::PATCH, path, json!({"ttl": "90m"})).await;
    assert_eq!((status, &refused["error"]["details"][1]["fieldViolations"][0]["field"]), (400, &json!("ttl")));
}
