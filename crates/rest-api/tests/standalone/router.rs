//! Tests of the router that do not depend on the store.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use proviso_rest_api::{Caller, router};
use serde_json::{Value, json};

use crate::store::TestStore;

async fn send(request: Request<Body>) -> (Response<()>, Value) {
    let router = TowerToHyperService::new(router(Arc::new(TestStore::default())));
    let (head, body) = router.call(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), serde_json::from_slice(&body).unwrap())
}

fn get(path: &str) -> axum::http::request::Builder {
    Request::get(path)
}

#[tokio::test]
async fn a_panic_is_answered_with_an_aip_193_error() {
    let (response, body) = send(get("/v1/policies/cluster.a").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 500);
    assert_eq!((&body["error"]["code"], &body["error"]["status"]), (&500.into(), &"INTERNAL".into()), "{body}");
    assert!(!body.to_string().contains("on purpose"), "{body}");
}

#[tokio::test]
async fn a_body_that_is_not_json_is_refused() {
    let form =
        Request::post("/v1/policies?policyId=cluster.a").header("content-type", "application/x-www-form-urlencoded");
    let (response, body) = send(form.body(Body::from("a=b")).unwrap()).await;
    assert_eq!((response.status().as_u16(), &body["error"]["code"]), (415, &415.into()));
}

#[tokio::test]
async fn an_unsupported_method_is_refused_with_the_supported_ones() {
    let (response, body) = send(Request::put("/v1/policies").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 405, "{body}");
    assert_eq!(response.headers()["allow"], "GET, POST");
}

#[tokio::test]
async fn the_store_receives_the_caller() {
    let ann = Caller { user: "ann".to_owned(), ..Caller::default() };
    for (request, wanted) in [(get("/v1/policies"), "no caller"), (get("/v1/policies").extension(ann), "ann")] {
        let (response, body) = send(request.body(Body::empty()).unwrap()).await;
        assert_eq!((response.status().as_u16(), &body["error"]["message"]), (403, &wanted.into()));
    }
}

#[tokio::test]
async fn the_store_receives_the_namespace_of_a_list() {
    for (path, wanted) in [
        ("/v1/policies?namespace=team-a", (403, "no caller in team-a")),
        ("/v1/policies/-/experiments?namespace=team-a", (403, "experiments")),
        ("/v1/policies?namespace=", (400, "namespace: is not")),
        ("/v1/policies?namespace=Team", (400, "namespace: is not")),
        ("/v1/policies/ns.a.b/experiments?namespace=a", (400, "only be set for the policy `-`")),
        ("/v1/operations?namespace=a", (400, "not a parameter")),
    ] {
        let (response, body) = send(get(path).body(Body::empty()).unwrap()).await;
        let message = body["error"]["message"].as_str().unwrap();
        assert!(response.status().as_u16() == wanted.0 && message.contains(wanted.1), "{path}: {body}");
    }
}

#[tokio::test]
async fn the_id_of_a_new_experiment_has_two_names() {
    let experiment = json!({"policy": {"spec": {
        "program": {"cel": {"validations": [{"expression": "true"}]}},
        "admission": {"rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
    }}});
    for (query, wanted) in [
        ("policyExperimentId=a", (403, "experiments")),
        ("policy_experiment_id=a", (403, "experiments")),
        ("experimentId=a", (403, "experiments")),
        ("policyExperimentId=a&experimentId=a", (403, "experiments")),
        ("policyExperimentId=a&experimentId=b", (400, "policyExperimentId: is \"a\"")),
        ("policyExperimentId=A", (400, "policyExperimentId: ")),
        ("experimentId=A", (400, "experimentId: ")),
        ("", (400, "policyExperimentId: is missing")),
    ] {
        let request = Request::post(format!("/v1/policies/cluster.p/experiments?{query}"));
        let (response, body) = send(request.body(Body::from(experiment.to_string())).unwrap()).await;
        let message = body["error"]["message"].as_str().unwrap();
        assert!(response.status().as_u16() == wanted.0 && message.contains(wanted.1), "{query}: {body}");
    }
}
