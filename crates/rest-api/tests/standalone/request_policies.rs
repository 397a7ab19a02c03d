//! Tests of the management of request policies that do not depend on the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use proviso_rest_api::{Caller, PolicyStore, health_router, request_policies_router};
use serde_json::{Value, json};

use crate::memory_store::MemoryStore;
use crate::store::TestStore;

const ADR: &str = "/api/v1/policies";
const PUBLISHED: &str = "/api/v1alpha1/policies";

async fn send<S: PolicyStore>(store: &Arc<S>, request: Request<Body>) -> (Response<()>, Value) {
    let router = request_policies_router(Arc::clone(store)).merge(health_router());
    let (head, body) = TowerToHyperService::new(router).call(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    (Response::from_parts(head, ()), body)
}

/// Calls a method. Returns the status and the body. Every error is a problem about the path.
async fn call(store: &Arc<MemoryStore>, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).body(body).unwrap();
    let (response, answer) = send(store, request).await;
    if response.status().as_u16() >= 400 {
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(answer["status"], response.status().as_u16(), "{answer}");
        assert_eq!(answer["instance"], path.split('?').next().unwrap(), "{answer}");
        assert!(answer["title"].is_string() && answer["detail"].is_string(), "{answer}");
    }
    (response.status().as_u16(), answer)
}

fn published() -> Value {
    json!({"display_name": "A", "policy_type": "GLOBAL", "rego_code": "package p\nmain := {}"})
}

fn adr(name: &str) -> Value {
    json!({"name": name, "type": "Global", "rego": "package p\nresult := {}"})
}

#[tokio::test]
async fn every_error_is_a_problem() {
    let store = Arc::new(MemoryStore::default());
    for (method, path, body, status, kind) in [
        ("GET", "/api/v1alpha1", Value::Null, 404, "NOT_FOUND"),
        ("GET", "/api/v1alpha1/other", Value::Null, 404, "NOT_FOUND"),
        ("GET", "/api/v1/", Value::Null, 404, "NOT_FOUND"),
        ("GET", "/api/v1/policies/a/b", Value::Null, 404, "NOT_FOUND"),
        ("GET", "/api/v1/policies/uid", Value::Null, 404, "NOT_FOUND"),
        ("GET", "/api/v1alpha1/policies/a", Value::Null, 404, "NOT_FOUND"),
        ("PATCH", "/api/v1alpha1/policies/No.Id", json!({}), 404, "NOT_FOUND"),
        ("PUT", "/api/v1alpha1/policies/a", json!({}), 405, "UNIMPLEMENTED"),
        ("PATCH", "/api/v1/policies/a", json!({}), 405, "UNIMPLEMENTED"),
        ("POST", "/api/v1alpha1/health", json!({}), 405, "UNIMPLEMENTED"),
        ("POST", PUBLISHED, json!([]), 400, "INVALID_ARGUMENT"),
        ("POST", PUBLISHED, Value::Null, 400, "INVALID_ARGUMENT"),
        ("POST", ADR, Value::Null, 400, "INVALID_ARGUMENT"),
        ("POST", "/api/v1alpha1/policies?id=test_policy", published(), 400, "INVALID_ARGUMENT"),
        ("POST", "/api/v1alpha1/policies?name=a", published(), 400, "INVALID_ARGUMENT"),
        ("GET", "/api/v1alpha1/policies?filter=a&filter=b", Value::Null, 400, "INVALID_ARGUMENT"),
        ("GET", "/api/v1alpha1/policies/a?filter=a", Value::Null, 400, "INVALID_ARGUMENT"),
        ("GET", "/api/v1/policies?type=GLOBAL", Value::Null, 400, "INVALID_ARGUMENT"),
        ("GET", "/api/v1/policies?pageSize=-1", Value::Null, 400, "INVALID_ARGUMENT"),
    ] {
        let (answered, problem) = call(&store, method, path, body).await;
        assert_eq!((answered, &problem["type"]), (status, &json!(kind)), "{method} {path}: {problem}");
    }
    let allowed = Request::put(PUBLISHED).body(Body::empty()).unwrap();
    assert_eq!(send(&store, allowed).await.0.headers()["allow"], "GET, POST");
    let (_, health) = call(&store, "GET", "/api/v1alpha1/health", Value::Null).await;
    assert_eq!(health, json!({"status": "ok", "path": "health"}));
}

#[tokio::test]
async fn bodies_have_a_type_a_size_and_valid_json() {
    let store = Arc::new(MemoryStore::default());
    call(&store, "POST", "/api/v1alpha1/policies?id=a", published()).await;
    let merge = "application/merge-patch+json";
    let large = json!({"description": "x".repeat(4 << 20)}).to_string();
    for (method, path, content_type, body, status) in [
        ("POST", PUBLISHED, "application/x-www-form-urlencoded", "a=b", 415),
        ("POST", PUBLISHED, merge, "{}", 415),
        ("POST", ADR, "text/plain", "{}", 415),
        ("PATCH", "/api/v1alpha1/policies/a", "text/plain", "{}", 415),
        ("PATCH", "/api/v1alpha1/policies/a", merge, "{", 400),
        ("PATCH", "/api/v1alpha1/policies/a", merge, "{\"priority\": 3}", 200),
        ("PATCH", "/api/v1alpha1/policies/a", "application/json; charset=utf-8", "{\"priority\": 4}", 200),
        ("PATCH", "/api/v1alpha1/policies/a", merge, large.as_str(), 413),
    ] {
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let (response, answer) = send(&store, request.body(Body::from(body.to_owned())).unwrap()).await;
        assert_eq!(response.status().as_u16(), status, "{method} {content_type}: {answer}");
        let problem = (status >= 400).then_some(json!("INVALID_ARGUMENT"));
        assert_eq!(answer.get("type"), problem.as_ref());
    }
}

#[tokio::test]
async fn a_patch_is_applied_to_the_change_of_another_client() {
    let store = Arc::new(MemoryStore::default());
    call(&store, "POST", "/api/v1alpha1/policies?id=a", published()).await;
    store.conflicts.store(2, Ordering::SeqCst);
    let (status, patched) = call(&store, "PATCH", "/api/v1alpha1/policies/a", json!({"priority": 7})).await;
    assert_eq!((status, &patched["priority"]), (200, &json!(7)));
    assert_eq!(patched["description"], "of another client");
    store.conflicts.store(99, Ordering::SeqCst);
    let (status, problem) = call(&store, "PATCH", "/api/v1alpha1/policies/a", json!({"priority": 8})).await;
    assert_eq!((status, &problem["type"]), (409, &json!("ABORTED")), "{problem}");
}

#[tokio::test]
async fn a_change_waits_until_it_is_served_or_the_time_of_the_store_has_passed() {
    let store = Arc::new(MemoryStore::default());
    for (method, path, body, status) in [
        ("POST", "/api/v1alpha1/policies?id=a", published(), 201),
        ("PATCH", "/api/v1alpha1/policies/a", json!({"priority": 7}), 200),
        ("DELETE", "/api/v1alpha1/policies/a", Value::Null, 204),
    ] {
        store.running.store(5, Ordering::SeqCst);
        assert_eq!(call(&store, method, path, body).await.0, status);
        assert_eq!(store.running.load(Ordering::SeqCst), 0, "{method} has waited");
    }
    let store = Arc::new(MemoryStore::with_serving_timeout(Duration::from_millis(50)));
    store.running.store(usize::MAX, Ordering::SeqCst);
    let (status, created) = call(&store, "POST", "/api/v1alpha1/policies?id=b", published()).await;
    assert_eq!((status, &created["id"]), (201, &json!("b")), "the policy is stored");
}

#[tokio::test]
async fn policies_of_the_adr_are_named_by_their_slugs() {
    let store = Arc::new(MemoryStore::default());
    let mut locations = Vec::new();
    for (name, object) in [("Cost center", Some("cluster.cost-center")), ("cost-center", None)] {
        let request = Request::post(ADR).body(Body::from(adr(name).to_string())).unwrap();
        let (response, created) = send(&store, request).await;
        assert_eq!((response.status().as_u16(), &created["name"]), (201, &json!(name)), "{created}");
        locations.push(response.headers()["location"].to_str().unwrap().to_owned());
        let id = store.policy_with_uid(created["id"].as_str().unwrap()).await.unwrap().unwrap();
        assert!(id.as_str().starts_with("cluster.cost-center"), "{id}");
        assert!(object.is_none_or(|object| id.as_str() == object), "{id}");
    }
    for location in &locations {
        assert_eq!(call(&store, "GET", location, Value::Null).await.0, 200, "{location}");
    }
    let mut of_tenant = adr("Cost center");
    (of_tenant["type"], of_tenant["tenant"]) = (json!("Tenant"), json!("blue"));
    let (_, created) = call(&store, "POST", ADR, of_tenant).await;
    let id = store.policy_with_uid(created["id"].as_str().unwrap()).await.unwrap().unwrap();
    assert_eq!(id.as_str(), "ns.team-a.cost-center");
    assert_eq!(call(&store, "DELETE", &format!("{ADR}/{}", created["id"].as_str().unwrap()), Value::Null).await.0, 204);
}

#[tokio::test]
async fn a_policy_that_the_published_form_cannot_show_does_not_exist_in_it() {
    let store = Arc::new(MemoryStore::default());
    let mut body = adr("a");
    body["serviceType"] = json!("vm");
    let (_, created) = call(&store, "POST", ADR, body).await;
    assert_eq!(created["serviceTypes"], json!(["vm"]));
    for (method, body) in [("GET", Value::Null), ("PATCH", json!({"enabled": false})), ("DELETE", Value::Null)] {
        assert_eq!(call(&store, method, "/api/v1alpha1/policies/a", body).await.0, 404, "{method}");
    }
    assert_eq!(call(&store, "GET", PUBLISHED, Value::Null).await.1, json!({"policies": []}));
    // Its id is in use.
    let (status, problem) = call(&store, "POST", "/api/v1alpha1/policies?id=a", published()).await;
    assert_eq!((status, &problem["detail"]), (409, &json!("policies/a already exists")));
}

#[tokio::test]
async fn the_store_receives_the_caller_and_a_panic_is_a_problem() {
    let store = Arc::new(TestStore::default());
    let ann = Caller { user: "ann".to_owned(), ..Caller::default() };
    let (response, problem) = send(&store, Request::get(PUBLISHED).extension(ann).body(Body::empty()).unwrap()).await;
    assert_eq!((response.status().as_u16(), &problem["detail"]), (403, &json!("ann")));
    assert_eq!(problem["type"], "PERMISSION_DENIED");
    let (response, problem) = send(&store, Request::get(ADR).body(Body::empty()).unwrap()).await;
    assert_eq!((response.status().as_u16(), &problem["type"]), (500, &json!("INTERNAL")));
    assert!(!problem.to_string().contains("on purpose"), "{problem}");
}
