//! Calls of the routes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use proviso_configuration_api::{health_router, router};
use proviso_http::shutdown::Phase;
use proviso_rest_api::Caller;
use serde_json::Value;
use tokio::sync::watch;

use crate::memory_store::MemoryStore;

/// The time limit for each condition.
pub const LIMIT: Duration = Duration::from_mins(1);

/// The routes over a store.
#[derive(Clone)]
pub struct Server {
    pub store: Arc<MemoryStore>,
    service: TowerToHyperService<axum::Router>,
    phase: Arc<watch::Sender<Phase>>,
}

/// An answer with its whole body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Returns a request of a user. An empty body is no body.
pub fn request(user: &str, method: &str, path: &str, body: &str) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path).header("x-ecomp-requestid", "request-1");
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    let caller = Caller { user: user.to_owned(), ..Caller::default() };
    request.extension(caller).body(Body::from(body.to_owned())).unwrap()
}

impl Server {
    pub fn new() -> Self {
        let store = MemoryStore::new();
        let (phase, receiver) = watch::channel(Phase::Serving);
        let routes = router(Arc::clone(&store), receiver.clone()).merge(health_router(Arc::clone(&store), receiver));
        Self { store, service: TowerToHyperService::new(routes), phase: Arc::new(phase) }
    }

    pub fn shut_down(&self) {
        self.phase.send_replace(Phase::ShuttingDown);
    }

    pub async fn begin(&self, request: Request<Body>) -> Response<Body> {
        self.service.call(request).await.unwrap()
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let (head, body) = tokio::time::timeout(LIMIT, self.begin(request)).await.unwrap().into_parts();
        let body = tokio::time::timeout(LIMIT, body.collect()).await.unwrap().unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        Answer { status: head.status.as_u16(), headers: head.headers, text }
    }

    /// Sends a request of an administrator.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.send(request("admin", method, path, body)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "").await
    }

    /// Sends a request of the user `limited`, who has only the granted permissions.
    pub async fn get_limited(&self, path: &str) -> Answer {
        self.send(request("limited", "GET", path, "")).await
    }

    pub fn grant(&self, permissions: &[&str]) {
        self.store.state().grants.extend(permissions.iter().map(|it| (*it).to_owned()));
    }
}
