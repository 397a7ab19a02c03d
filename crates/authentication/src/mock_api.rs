//! An API server for tests. It reviews tokens: those that begin with `bad` or `flood` are not valid, the others are the names of their
//! users. Only the user `prometheus` may read metrics.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use proviso_http::{Limits, Peer};
use serde_json::{Value, json};

#[derive(Clone, Debug, Default)]
pub struct MockApi {
    reviews: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    is_unavailable: Arc<AtomicBool>,
}

impl MockApi {
    /// Returns the number of token reviews so far.
    pub fn reviews(&self) -> usize {
        self.reviews.load(Ordering::Relaxed)
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn set_available(&self, is_available: bool) {
        self.is_unavailable.store(!is_available, Ordering::Relaxed);
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let is_token_review = request.uri().path().ends_with("/tokenreviews");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        if self.is_unavailable.load(Ordering::Relaxed) {
            let status = json!({"status": "Failure", "code": 500, "reason": "InternalError", "message": "by a test"});
            return respond(StatusCode::INTERNAL_SERVER_ERROR, &status);
        }
        review["status"] = if is_token_review {
            self.reviews.fetch_add(1, Ordering::Relaxed);
            let token = review["spec"]["token"].as_str().unwrap();
            let is_valid = !token.starts_with("bad") && !token.starts_with("flood");
            json!({"authenticated": is_valid, "user": {"username": token}})
        } else {
            let attributes = &review["spec"]["nonResourceAttributes"];
            assert_eq!(*attributes, json!({"path": "/metrics", "verb": "get"}));
            json!({"allowed": review["spec"]["user"] == "prometheus"})
        };
        respond(StatusCode::CREATED, &review)
    }
}

fn respond(status: StatusCode, object: &Value) -> Response<Body> {
    Response::builder().status(status).body(Body::from(serde_json::to_vec(object).unwrap())).unwrap()
}

/// Returns the head of a request with this token from a client with this address.
pub fn head(token: Option<&str>, address: &str) -> Parts {
    let mut request = Request::get("/").extension(Peer::new(address.parse().unwrap(), Limits::small()));
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    request.body(()).unwrap().into_parts().0
}
