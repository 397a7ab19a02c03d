//! A replica that API servers call: it answers reviews with the certificate in the Secret of its policy server, if the path has a token
//! in the Secret of caller tokens.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use axum::extract::State;
use axum::http::header::CONNECTION;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use proviso_core::caller_token::split_token;
use proviso_e2e::{address_for_endpoints, until};
use proviso_http::Certificate;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::test_cluster::{TIMEOUT, TestCluster};

/// The Service of the policy server.
const SERVICE: &str = "policy-server-default";
/// The interval at which the replica reads its certificate: that of `policy-server/src/tls.rs`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const DENIAL: &str = "denied by the replica";

/// The tokens of callers.
#[derive(Default)]
struct Tokens {
    accepted: Mutex<Vec<String>>,
    /// The tokens that API servers have sent.
    sent: Mutex<BTreeSet<String>>,
}

/// A replica. It ends when this value is dropped.
pub struct CalledReplica {
    connections: Arc<AtomicUsize>,
    tokens: Arc<Tokens>,
    _tasks: JoinSet<()>,
}

impl CalledReplica {
    /// Starts a replica, and makes it the endpoint of the Service `policy-server-default`.
    pub async fn start(cluster: &TestCluster) -> Result<Self> {
        let (certificate, secrets) = (Arc::new(Certificate::default()), cluster.api::<Secret>());
        let tokens = Arc::<Tokens>::default();
        load(&certificate, &tokens, &secrets).await?;
        let host = address_for_endpoints()?;
        let listener = TcpListener::bind((host, 0)).await?;
        let port = listener.local_addr()?.port();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        });
        let params = PatchParams::apply("test").force();
        cluster.api::<EndpointSlice>().patch(SERVICE, &params, &Patch::Apply(slice)).await?;

        let (mut tasks, connections) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        let (connected, known) = (Arc::clone(&connections), Arc::clone(&tokens));
        tasks.spawn(accept(listener, Arc::clone(&certificate), connected, Arc::clone(&tokens)));
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                // The replica keeps its certificate while it cannot read another one.
                let _ = load(&certificate, &known, &secrets).await;
            }
        });
        Ok(Self { connections, tokens, _tasks: tasks })
    }

    /// Returns the number of TLS connections since the start.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of different tokens that API servers have sent.
    pub fn tokens(&self) -> usize {
        self.tokens.sent.lock().unwrap().len()
    }

    /// Sends requests that the API server must let the replica decide, and counts the answers. Returns only the first
    /// failure.
    pub async fn ask(&self, cluster: &TestCluster, answered: &Cell<u32>) -> Result<()> {
        let secrets = Api::<Secret>::namespaced(cluster.client.clone(), "default");
        let secret = serde_json::from_value(json!({"metadata": {"generateName": "asked-"}}))?;
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let ask = async || match secrets.create(&dry_run, &secret).await {
            Err(kube::Error::Api(status)) if status.message.contains(DENIAL) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("a request was allowed"),
        };
        // At first, the API server may not have seen the webhook or the endpoint yet.
        until("the first answer of the replica", TIMEOUT, async || ask().await).await?;
        loop {
            ask().await.with_context(|| format!("after {} answers", answered.get()))?;
            answered.set(answered.get() + 1);
        }
    }
}

/// Loads the certificate and the tokens in the Secrets.
async fn load(certificate: &Certificate, tokens: &Tokens, secrets: &Api<Secret>) -> Result<()> {
    let callers = secrets.get("policy-server-default-callers").await?.data.unwrap_or_default();
    let accepted = String::from_utf8(callers.get("tokens").context("no tokens")?.0.clone())?;
    *tokens.accepted.lock().unwrap() = accepted.lines().map(ToOwned::to_owned).collect();
    let data = secrets.get("policy-server-default-tls").await?.data.unwrap_or_default();
    let read = |key: &str| data.get(key).map(|bytes| bytes.0.as_slice()).with_context(|| format!("no {key}"));
    Ok(certificate.replace(read("tls.crt")?, read("tls.key")?)?)
}

async fn accept(
    listener: TcpListener,
    certificate: Arc<Certificate>,
    connections: Arc<AtomicUsize>,
    tokens: Arc<Tokens>,
) {
    let acceptor = certificate.acceptor().unwrap();
    let router = Router::new().fallback(deny).with_state(tokens);
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (acceptor, router, connections) = (acceptor.clone(), router.clone(), Arc::clone(&connections));
        open.spawn(async move {
            // A failed handshake fails a request, which the test sees.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            connections.fetch_add(1, Ordering::Relaxed);
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
        });
    }
}

/// Denies a review. The API server sends the next one on another connection, and so verifies the certificate for each request.
async fn deny(State(tokens): State<Arc<Tokens>>, uri: Uri, Json(review): Json<Value>) -> Response {
    let token = split_token(uri.path()).0.unwrap_or_default().to_owned();
    if !tokens.accepted.lock().unwrap().contains(&token) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    tokens.sent.lock().unwrap().insert(token);
    let answer = json!({
        "apiVersion": review["apiVersion"], "kind": review["kind"],
        "response": {"uid": review["request"]["uid"], "allowed": false, "status": {"message": DENIAL}},
    });
    ([(CONNECTION, "close")], Json(answer)).into_response()
}
