//! A test server of the aggregated API `actions.proviso.dev/v1alpha1`. The API server checks the user's permissions, and
//! forwards calls to it. The test server records each call, and gives the answer that the test sets.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;
use kube::api::PostParams;
use proviso_e2e::pki::{Authority, Identity};
use proviso_e2e::{address_for_endpoints, until};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;

use crate::test_cluster::{TestCluster, WAIT_TIMEOUT};

const NAME: &str = "actions";

/// A call that the API server forwarded.
#[derive(Debug, PartialEq)]
pub struct Call {
    /// The path below the group and version.
    pub path: String,
    pub body: Value,
}

/// A running server of the aggregated API.
pub struct Actions {
    pub calls: UnboundedReceiver<Call>,
    answer: Arc<Mutex<(u16, Value)>>,
}

impl Actions {
    /// Starts the server, registers it, and waits until the API server forwards to it.
    pub async fn serve(cluster: &TestCluster) -> Result<Self> {
        let host = address_for_endpoints()?;
        let authority = Authority::new(NAME, &cluster.plane.folder().path().join("pki"))?;
        let identity = authority.server(NAME, &[&format!("{NAME}.default.svc")])?;
        let (sender, calls) = unbounded_channel();
        let answer = Arc::new(Mutex::new(success()));
        let port = listen(host, &identity, sender, answer.clone()).await?;
        register(cluster, host, port, &authority.pem()).await?;
        Ok(Self { calls, answer })
    }

    /// Sets the answer to the next calls: an error.
    pub fn answer(&self, code: u16, reason: &str, message: &str) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
            "message": message,
        });
        *self.answer.lock().expect("the lock is not poisoned") = (code, status);
    }

    /// Sets the answer to the next calls: an error of the API with this reason.
    pub fn refuse(&self, code: u16, reason: &str, message: &str) {
        self.answer(code, "BadRequest", message);
        let (_, status) = &mut *self.answer.lock().expect("the lock is not poisoned");
        status["details"] = json!({"causes": [{"reason": reason, "message": message}]});
    }

    /// Sets the answer to the next calls: success.
    pub fn succeed(&self) {
        *self.answer.lock().expect("the lock is not poisoned") = success();
    }

    /// Returns the next call.
    pub async fn next(&mut self) -> Result<Call> {
        tokio::time::timeout(WAIT_TIMEOUT, self.calls.recv()).await?.context("the server ended")
    }
}

fn success() -> (u16, Value) {
    (200, json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"}))
}

async fn register(cluster: &TestCluster, host: IpAddr, port: u16, authority: &str) -> Result<()> {
    let client = &cluster.client;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": NAME}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
    }))?;
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &service).await?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": format!("{NAME}-1"), "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }))?;
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &slice).await?;
    let api_service: APIService = serde_json::from_value(json!({
        "metadata": {"name": "v1alpha1.actions.proviso.dev"},
        "spec": {
            "group": "actions.proviso.dev", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 10,
            "service": {"namespace": "default", "name": NAME, "port": 443},
            "caBundle": base64::engine::general_purpose::STANDARD.encode(authority),
        },
    }))?;
    Api::<APIService>::all(client.clone()).create(&PostParams::default(), &api_service).await?;
    until("the aggregated API", WAIT_TIMEOUT, async || {
        let discovery = http::Request::get("/apis/actions.proviso.dev/v1alpha1").body(Vec::new())?;
        let answered: Value = client.request(discovery).await?;
        ensure!(answered["kind"] == "APIResourceList", "{answered}");
        Ok(())
    })
    .await
}

async fn listen(
    host: IpAddr,
    identity: &Identity,
    calls: UnboundedSender<Call>,
    answer: Arc<Mutex<(u16, Value)>>,
) -> Result<u16> {
    let chain = CertificateDer::pem_file_iter(&identity.certificate)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&identity.key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind((host, 0)).await?);
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(acceptor.clone(), stream, calls.clone(), answer.clone()));
        }
    });
    Ok(port)
}

async fn converse(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    calls: UnboundedSender<Call>,
    answer: Arc<Mutex<(u16, Value)>>,
) -> Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            if stream.read_line(&mut head).await? == 0 {
                return Ok(());
            }
            if let Some(value) = head[start..].to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (code, json) = if method == "POST" {
            let path = path.trim_start_matches("/apis/actions.proviso.dev/v1alpha1/").to_owned();
            let _ = calls.send(Call { path, body: serde_json::from_slice(&body)? });
            answer.lock().expect("the lock is not poisoned").clone()
        } else {
            let group_version = "actions.proviso.dev/v1alpha1";
            (
                200,
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": []}),
            )
        };
        let json = json.to_string();
        let head =
            format!("HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", json.len());
        stream.write_all((head + &json).as_bytes()).await?;
        stream.flush().await?;
    }
}
