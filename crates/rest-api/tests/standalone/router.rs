//! What the router does by itself, whatever holds the policies.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use proviso_core::PolicyId;
use proviso_rest_api::{
    Awaited, Caller, Change, Code, Committing, Error, ExperimentName, PolicyStore, Preview, Progress, StoredExperiment,
    StoredPolicy, router,
};
use serde_json::Value;

/// Breaks at every touch, but says who asked for a list.
struct Broken;

type Result<T> = std::result::Result<T, Error>;
type Who<'a> = Option<&'a Caller>;

impl PolicyStore for Broken {
    async fn policies(&self, caller: Who<'_>) -> Result<Vec<StoredPolicy>> {
        let user = caller.map_or("nobody", |caller| &caller.user);
        Err(Error::new(Code::PermissionDenied, "FORBIDDEN", user))
    }
    async fn policy(&self, _: Who<'_>, _: &PolicyId) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn create_policy(&self, _: Who<'_>, _: &PolicyId, _: Change) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn update_policy(&self, _: Who<'_>, _: &PolicyId, _: &str, _: Change) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn delete_policy(&self, _: Who<'_>, _: &PolicyId, _: Option<&str>) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn experiments(&self, _: Who<'_>, _: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        panic!("on purpose")
    }
    async fn experiment(&self, _: Who<'_>, _: &ExperimentName) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn create_experiment(&self, _: Who<'_>, _: &ExperimentName, _: Change) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn update_experiment(&self, _: Who<'_>, _: &ExperimentName, _: &str, _: Change) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn delete_experiment(&self, _: Who<'_>, _: &ExperimentName, _: Option<&str>) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn preview(&self, _: Who<'_>, _: &ExperimentName, _: Preview) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn commit(&self, _: Who<'_>, _: &ExperimentName, _: &Committing) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn progress(&self, _: Who<'_>, _: &Awaited) -> Result<Progress> {
        panic!("on purpose")
    }
}

async fn ask(request: Request<Body>) -> (Response<()>, Value) {
    let router = TowerToHyperService::new(router(Arc::new(Broken)));
    let (head, body) = router.call(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), serde_json::from_slice(&body).unwrap())
}

fn get(path: &str) -> axum::http::request::Builder {
    Request::get(path)
}

#[tokio::test]
async fn a_panic_is_an_answer_in_the_shape_of_aip_193() {
    let (response, body) = ask(get("/v1/policies/cluster.a").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 500);
    assert_eq!((&body["error"]["code"], &body["error"]["status"]), (&500.into(), &"INTERNAL".into()), "{body}");
    assert!(!body.to_string().contains("on purpose"), "{body}");
}

#[tokio::test]
async fn a_body_that_is_no_json_is_refused() {
    let form =
        Request::post("/v1/policies?policyId=cluster.a").header("content-type", "application/x-www-form-urlencoded");
    let (response, body) = ask(form.body(Body::from("a=b")).unwrap()).await;
    assert_eq!((response.status().as_u16(), &body["error"]["code"]), (415, &415.into()));
}

#[tokio::test]
async fn a_method_that_a_path_has_not_is_told_which_it_has() {
    let (response, body) = ask(Request::put("/v1/policies").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 405, "{body}");
    assert_eq!(response.headers()["allow"], "GET, POST");
}

#[tokio::test]
async fn the_store_is_told_who_calls() {
    let ann = Caller { user: "ann".to_owned(), ..Caller::default() };
    for (request, wanted) in [(get("/v1/policies"), "nobody"), (get("/v1/policies").extension(ann), "ann")] {
        let (response, body) = ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!((response.status().as_u16(), &body["error"]["message"]), (403, &wanted.into()));
    }
}
