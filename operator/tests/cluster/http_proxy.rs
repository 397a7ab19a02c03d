//! A proxy between one operator and the API server that sees each request. It speaks plain HTTP with the operator, and
//! is an administrator for the API server.

use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::test_cluster::TestCluster;

/// The parts of the paths of policies, revisions and their webhooks.
const COUNTED: [&str; 3] = ["/clusterpolicies/", "/policyrevisions", "webhookconfigurations/proviso-cluster."];

/// A proxy. It ends when this value is dropped.
pub struct HttpProxy {
    /// The kubeconfig of an operator whose requests pass the proxy.
    pub kubeconfig: PathBuf,
    writes: Arc<Mutex<Writes>>,
    task: JoinHandle<()>,
}

/// The writes of policies, revisions and their webhooks.
#[derive(Default)]
struct Writes {
    /// The method and path of each write since the last call of [`HttpProxy::stop_after`].
    begun: Vec<String>,
    /// The number of writes that the API server has answered.
    answered: usize,
    /// The number of writes that reach the API server; `None` if all do. The last one gets no answer.
    limit: Option<usize>,
}

impl HttpProxy {
    /// Starts a proxy. `rewrite` returns the path and query that the API server gets for those of a request.
    pub async fn start(
        cluster: &TestCluster,
        name: &str,
        rewrite: impl Fn(&str) -> String + Clone + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (plane, address) = (&cluster.plane, listener.local_addr()?);
        let direct = std::fs::read_to_string(plane.kubeconfig())?;
        let kubeconfig = plane.folder().path().join(format!("{name}.http.kubeconfig"));
        std::fs::write(&kubeconfig, direct.replace(&plane.url(), &format!("http://{address}")))?;
        let writes = Arc::<Mutex<Writes>>::default();
        let (client, state) = (cluster.client.clone(), Arc::clone(&writes));
        let router = Router::new().fallback(move |request: Request| {
            let (client, state, rewrite) = (client.clone(), Arc::clone(&state), rewrite.clone());
            async move {
                let path = rewrite(&request.uri().to_string());
                answer(request, &path, &client, &state).await
            }
        });
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { kubeconfig, writes, task })
    }

    /// Lets this number of writes reach the API server. The last one gets no answer, and neither does any later write.
    pub fn stop_after(&self, limit: usize) {
        *self.writes.lock().unwrap() = Writes { limit: Some(limit), ..Writes::default() };
    }

    /// Returns true if a write has begun since the last call of [`Self::stop_after`].
    pub fn has_begun(&self) -> bool {
        !self.writes.lock().unwrap().begun.is_empty()
    }

    /// Returns the writes of [`Self::stop_after`]; `None` if not all of them have reached the API server yet.
    pub fn stopped(&self) -> Option<Vec<String>> {
        let writes = self.writes.lock().unwrap();
        (Some(writes.answered) == writes.limit).then(|| writes.begun.clone())
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(request: Request, path: &str, client: &Client, writes: &Mutex<Writes>) -> Response {
    let is_write = ![Method::GET, Method::HEAD].contains(request.method());
    let is_counted = is_write && COUNTED.iter().any(|part| path.contains(part));
    let write = format!("{} {}", request.method(), path.split('?').next().unwrap_or_default());
    if is_counted && !begin(write, writes) {
        return pending().await;
    }
    let answer = forward(request, path, client).await;
    if is_counted && is_last(writes) {
        return pending().await;
    }
    answer.unwrap_or_else(|error| (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response())
}

/// Records a write. Returns false if it must not reach the API server.
fn begin(write: String, writes: &Mutex<Writes>) -> bool {
    let mut writes = writes.lock().unwrap();
    let may_pass = writes.limit.is_none_or(|limit| writes.begun.len() < limit);
    if may_pass {
        writes.begun.push(write);
    }
    may_pass
}

/// Records the answer to a write. Returns true if it was the last one.
fn is_last(writes: &Mutex<Writes>) -> bool {
    let mut writes = writes.lock().unwrap();
    writes.answered += 1;
    Some(writes.answered) == writes.limit
}

async fn forward(request: Request, path: &str, client: &Client) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let mut forwarded = http::Request::builder().method(parts.method).uri(path);
    for name in [header::ACCEPT, header::CONTENT_TYPE] {
        if let Some(value) = parts.headers.get(&name) {
            forwarded = forwarded.header(name, value);
        }
    }
    let body = to_bytes(body, usize::MAX).await?.to_vec();
    let (parts, body) = client.send(forwarded.body(body.into())?).await?.into_parts();
    let mut response = Response::new(axum::body::Body::new(body));
    *response.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    Ok(response)
}
