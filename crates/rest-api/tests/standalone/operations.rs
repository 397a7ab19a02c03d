//! Tests of long-running operations over a store that tests control.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use proviso_e2e::until;
use proviso_http::Limits;
use proviso_rest_api::{Code, Error, OperationResult, PolicyStore as _, Progress, router};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::store::TestStore;

async fn call(store: &Arc<TestStore>, request: axum::http::request::Builder, body: Value) -> (u16, Value) {
    let router = TowerToHyperService::new(router(Arc::clone(store)));
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let response = router.call(request.body(body).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn get(store: &Arc<TestStore>, path: &str) -> (u16, Value) {
    call(store, Request::get(path), Value::Null).await
}

#[tokio::test]
async fn the_first_result_is_what_every_later_poll_returns() {
    let (store, id) = TestStore::with_commit();
    let (store, path) = (Arc::new(store), format!("/v1/operations/{id}"));
    let (status, running) = get(&store, &path).await;
    assert_eq!((status, &running["done"], &running["metadata"]["waitsFor"]), (200, &json!(false), &json!("an event")));
    store.set_progress(Progress::Failed(Error::new(Code::FailedPrecondition, "COMPILE_ERROR", "no")));
    let (_, failed) = get(&store, &path).await;
    assert_eq!((&failed["done"], &failed["error"]["message"]), (&json!(true), &json!("no")), "{failed}");
    let checks = store.checks();
    for progress in [Progress::Done, Progress::Running(String::new())] {
        store.set_progress(progress);
        assert_eq!(get(&store, &path).await, (200, failed.clone()));
        assert_eq!(call(&store, Request::post(format!("{path}:wait")), Value::Null).await, (200, failed.clone()));
    }
    assert_eq!(store.checks(), checks, "a recorded result is not computed again");
}

#[tokio::test]
async fn an_id_that_was_never_issued_is_not_found() {
    let store = Arc::new(TestStore::default());
    let long = "a".repeat(65);
    for id in ["0123456789abcdef0123456789abcdef", "x", "X", "a.b", "..%2Fa", "%20", &long] {
        let (status, body) = get(&store, &format!("/v1/operations/{id}")).await;
        let reason = &body["error"]["details"][0]["reason"];
        assert_eq!((status, reason), (404, &json!("RESOURCE_NOT_FOUND")), "{id}: {body}");
        let (status, _) = call(&store, Request::post(format!("/v1/operations/{id}:wait")), Value::Null).await;
        assert_eq!(status, 404, "{id}");
    }
}

#[tokio::test]
async fn operations_are_listed_with_filters_and_pages() {
    let (store, id) = TestStore::with_commit();
    let store = Arc::new(store);
    let mut other = store.operations.lock().unwrap()[&id].clone();
    other.id = "0".to_owned();
    store.create_operation(other).await.unwrap();
    store.finish_operation("0", OperationResult::Response(json!({}))).await.unwrap();
    let names = |list: &Value| -> Vec<String> {
        let operations = list["operations"].as_array().unwrap();
        operations.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    let (pending, ended) = (format!("operations/{id}"), "operations/0".to_owned());
    for (query, wanted) in [
        ("", vec![ended.clone(), pending.clone()]),
        ("filter=done=true", vec![ended.clone()]),
        ("filter=NOT+done=true", vec![pending.clone()]),
        ("filter=metadata.target=%22policies/cluster.p/experiments/e%22+done=false", vec![pending.clone()]),
        ("filter=metadata.create_time+%3E+%222026-11-20T09:14:07Z%22", vec![]),
        ("filter=metadata.createTime+%3C=+%222026-11-20T09:14:07Z%22", vec![ended.clone(), pending.clone()]),
        ("pageSize=1", vec![ended.clone()]),
    ] {
        let (status, list) = get(&store, &format!("/v1/operations?{query}")).await;
        assert_eq!((status, names(&list)), (200, wanted), "{query}: {list}");
    }
    let (_, first) = get(&store, "/v1/operations?pageSize=1").await;
    let token = first["nextPageToken"].as_str().unwrap();
    let (_, second) = get(&store, &format!("/v1/operations?pageToken={token}")).await;
    assert_eq!((names(&second), second.get("nextPageToken")), (vec![pending.clone()], None));

    // An operation without a result ends while a list reads it.
    store.set_progress(Progress::Done);
    let (_, running) = get(&store, "/v1/operations?filter=done=false").await;
    assert_eq!(names(&running), Vec::<String>::new());
    let (_, ended_now) = get(&store, "/v1/operations?filter=done=true").await;
    assert_eq!(names(&ended_now), [ended, pending]);
}

#[tokio::test]
async fn one_list_reads_at_most_a_hundred_operations() {
    let (store, id) = TestStore::with_commit();
    let store = Arc::new(store);
    let operation = store.operations.lock().unwrap()[&id].clone();
    for index in 0..149 {
        let mut other = operation.clone();
        other.id = format!("0{index:03}");
        store.create_operation(other).await.unwrap();
    }
    let (_, first) = get(&store, "/v1/operations?pageSize=1000").await;
    assert_eq!((first["operations"].as_array().unwrap().len(), store.checks()), (100, 100));
    let token = first["nextPageToken"].as_str().unwrap();
    let (_, second) = get(&store, &format!("/v1/operations?pageSize=1000&pageToken={token}")).await;
    assert_eq!((second["operations"].as_array().unwrap().len(), second.get("nextPageToken")), (50, None));
    // A page can be empty although there are more.
    let (_, empty) = get(&store, "/v1/operations?filter=done=true").await;
    assert!(empty["operations"] == json!([]) && empty["nextPageToken"].is_string(), "{empty}");
}

#[tokio::test]
async fn a_wait_reads_the_operation_at_most_once_a_second() {
    let (store, id) = TestStore::with_commit();
    let store = Arc::new(store);
    let start = Instant::now();
    let wait = Request::post(format!("/v1/operations/{id}:wait"));
    let (status, operation) = call(&store, wait, json!({"timeout": "2.5s"})).await;
    assert_eq!((status, &operation["done"]), (200, &json!(false)), "{operation}");
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(2500), "{waited:?}");
    let most = 1 + usize::try_from(waited.as_secs()).unwrap();
    assert!((2..=most).contains(&store.checks()), "{} checks in {waited:?}", store.checks());
}

#[tokio::test]
async fn a_wait_returns_when_the_operation_has_ended() {
    let (store, id) = TestStore::with_commit();
    let store = Arc::new(store);
    let wait = Request::post(format!("/v1/operations/{id}:wait"));
    let waiting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { call(&store, wait, json!({"timeout": "60s"})).await })
    };
    until("the first check", Duration::from_secs(10), async || {
        ensure!(store.checks() > 0);
        Ok(())
    })
    .await
    .unwrap();
    // Another call has recorded the result.
    store.finish_operation(&id, OperationResult::Response(json!({"a": 1}))).await.unwrap();
    let (_, operation) = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert_eq!((&operation["done"], &operation["response"]), (&json!(true), &json!({"a": 1})), "{operation}");
}

#[tokio::test]
async fn a_wait_ends_when_its_connection_ends() {
    let (store, id) = TestStore::with_commit();
    let store = Arc::new(store);
    let service = TowerToHyperService::new(router(Arc::clone(&store)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(proviso_http::serve(listener, None, Limits::small(), service, pending(), Duration::ZERO));
    // Each call that runs has a reference to the store.
    let idle = Arc::strong_count(&store);

    let mut connection = TcpStream::connect(address).await.unwrap();
    let body = json!({"timeout": "60s"}).to_string();
    let head = format!("POST /v1/operations/{id}:wait HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    until("the first check", Duration::from_secs(10), async || {
        ensure!(store.checks() > 0);
        Ok(())
    })
    .await
    .unwrap();
    assert!(Arc::strong_count(&store) > idle, "the call runs");
    drop(connection);
    until("the end of the call", Duration::from_secs(10), async || {
        ensure!(Arc::strong_count(&store) == idle, "{} references", Arc::strong_count(&store));
        Ok(())
    })
    .await
    .unwrap();
    assert!(store.checks() <= 11, "{} checks", store.checks());
    server.abort();
}
