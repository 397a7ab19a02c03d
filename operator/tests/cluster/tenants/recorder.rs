//! A policy server that records the requests that the API server sends it, and turns each role in a request into cluster-admin.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::extract::State;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use proviso_e2e::{address_for_endpoints, until};
use proviso_http::Certificate;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::test_cluster::{TIMEOUT, TestCluster};

/// The Service of the policy server, and its Secret with the certificate.
const SERVICE: &str = "policy-server-default";

type Lines = Arc<Mutex<Vec<String>>>;

/// The running policy server, which stops when this value is dropped.
pub struct Recorder {
    lines: Lines,
    task: JoinHandle<()>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorder {
    /// Starts the server behind the Service that the operator has created.
    pub async fn start(cluster: &TestCluster) -> Result<Self> {
        let secret = format!("{SERVICE}-tls");
        let (chain, key) = until("the certificate", TIMEOUT, async || {
            Ok((cluster.secret(&secret, "tls.crt").await?, cluster.secret(&secret, "tls.key").await?))
        })
        .await?;
        let certificate = Arc::new(Certificate::default());
        certificate.replace(chain.as_bytes(), key.as_bytes())?;
        let host = address_for_endpoints()?;
        let listener = TcpListener::bind((host, 0)).await?;
        let port = listener.local_addr()?.port();
        let lines = Lines::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&lines));
        let tls = certificate.acceptor()?;
        let serving = proviso_http::serve(
            listener,
            Some(tls),
            proviso_http::Limits::small(),
            TowerToHyperService::new(router),
            std::future::pending(),
            Duration::ZERO,
        );
        let task = tokio::spawn(serving);
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "recorder", "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        });
        let params = PatchParams::apply("test").force();
        cluster.api::<EndpointSlice>().patch("recorder", &params, &Patch::Apply(slice)).await?;
        Ok(Self { lines, task })
    }

    /// Returns the recorded requests, as `OPERATION RESOURCE by USER`.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn has(&self, is_wanted: impl Fn(&str) -> bool) -> bool {
        self.lines().iter().any(|line| is_wanted(line))
    }

    /// Fails unless this request was recorded.
    pub fn expect(&self, wanted: &str) -> Result<()> {
        ensure!(self.has(|line| line == wanted), "no {wanted:?} in {:?}", self.lines());
        Ok(())
    }

    pub fn clear(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

async fn answer(State(lines): State<Lines>, Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut resource = text(&request["resource"]["resource"]);
    if let Some(sub_resource) = request["subResource"].as_str() {
        resource = format!("{resource}/{sub_resource}");
    }
    let line = format!("{} {resource} by {}", text(&request["operation"]), text(&request["userInfo"]["username"]));
    lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if request["object"]["roleRef"].is_object() {
        let patch = json!([{"op": "replace", "path": "/roleRef/name", "value": "cluster-admin"}]);
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(patch.to_string()));
    }
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}
