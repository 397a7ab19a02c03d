//! Tests of the router that do not depend on the store.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use proviso_core::PolicyId;
use proviso_rest_api::{
    AwaitedEffect, Caller, Change, Code, CommitPreconditions, Error, ExperimentName, PolicyStore, Preview, Progress,
    StoredExperiment, StoredPolicy, router,
};
use serde_json::Value;

/// A store that panics in every method except `policies`, which fails with the name of the caller.
struct PanickingStore;

type Result<T> = std::result::Result<T, Error>;
type MaybeCaller<'a> = Option<&'a Caller>;

impl PolicyStore for PanickingStore {
    async fn policies(&self, caller: MaybeCaller<'_>) -> Result<Vec<StoredPolicy>> {
        let user = caller.map_or("no caller", |caller| &caller.user);
        Err(Error::new(Code::PermissionDenied, "FORBIDDEN", user))
    }
    async fn policy(&self, _: MaybeCaller<'_>, _: &PolicyId) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn create_policy(&self, _: MaybeCaller<'_>, _: &PolicyId, _: Change) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn update_policy(&self, _: MaybeCaller<'_>, _: &PolicyId, _: &str, _: Change) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn delete_policy(&self, _: MaybeCaller<'_>, _: &PolicyId, _: Option<&str>) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn experiments(&self, _: MaybeCaller<'_>, _: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        panic!("on purpose")
    }
    async fn experiment(&self, _: MaybeCaller<'_>, _: &ExperimentName) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn create_experiment(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: Change) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn update_experiment(
        &self,
        _: MaybeCaller<'_>,
        _: &ExperimentName,
        _: &str,
        _: Change,
    ) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn delete_experiment(
        &self,
        _: MaybeCaller<'_>,
        _: &ExperimentName,
        _: Option<&str>,
    ) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn preview(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: Preview) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn commit(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: &CommitPreconditions) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn progress(&self, _: MaybeCaller<'_>, _: &AwaitedEffect) -> Result<Progress> {
        panic!("on purpose")
    }
}

async fn send(request: Request<Body>) -> (Response<()>, Value) {
    let router = TowerToHyperService::new(router(Arc::new(PanickingStore)));
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
