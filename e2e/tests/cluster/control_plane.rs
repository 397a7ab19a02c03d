//! Tests of the control plane, which the tests of other crates use.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use proviso_e2e::pki::{Authority, Identity};
use proviso_e2e::{ControlPlane, Fault, Options, address_for_endpoints, until};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

fn named<K: serde::de::DeserializeOwned>(name: &str) -> Result<K> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}}))?)
}

async fn create(client: &Client, name: &str) -> Result<ConfigMap> {
    let api = Api::<ConfigMap>::default_namespaced(client.clone());
    Ok(api.create(&PostParams::default(), &named(name)?).await?)
}

#[tokio::test]
async fn a_control_plane_serves_and_its_controllers_work() -> Result<()> {
    let start = Instant::now();
    let plane = ControlPlane::start("a-control-plane-serves").await?;
    eprintln!("up in {:.1} s", start.elapsed().as_secs_f64());
    plane.ensure_controllers()?;
    let client = plane.client().await?;
    ensure!(client.apiserver_version().await?.git_version.starts_with("v1.36."));
    // A deleted namespace is removed after the controller manager has deleted its objects.
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &named("short-lived")?).await?;
    let inside = Api::<ConfigMap>::namespaced(client, "short-lived");
    inside.create(&PostParams::default(), &named("content")?).await?;
    namespaces.delete("short-lived", &DeleteParams::default()).await?;
    until("the end of the namespace", WAIT_TIMEOUT, async || {
        ensure!(namespaces.get_opt("short-lived").await?.is_none(), "the namespace still exists");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn two_api_servers_serve_the_same_cluster() -> Result<()> {
    let mut plane = ControlPlane::start("two-api-servers").await?;
    let second = plane.add_api_server().await?;
    let (first, other) = (plane.client().await?, plane.api_server(second).client().await?);
    create(&first, "by-the-first").await?;
    let seen = Api::<ConfigMap>::default_namespaced(other.clone()).get("by-the-first").await?;
    ensure!(seen.name_any() == "by-the-first");
    // The second API server works without the first.
    plane.api_server(0).process().kill();
    create(&other, "without-the-first").await?;
    ensure!(create(&first, "to-a-killed-server").await.is_err());
    plane.api_server(0).process().restart()?;
    plane.api_server(0).until_ready().await?;
    Api::<ConfigMap>::default_namespaced(plane.client().await?).get("without-the-first").await?;
    Ok(())
}

#[tokio::test]
async fn a_frozen_api_server_answers_after_it_is_thawed() -> Result<()> {
    let mut plane = ControlPlane::start("a-frozen-api-server").await?;
    let client = plane.client().await?;
    plane.api_server(0).process().freeze()?;
    let request = create(&client, "delayed");
    tokio::pin!(request);
    ensure!(
        tokio::time::timeout(Duration::from_millis(500), &mut request).await.is_err(),
        "a frozen API server has answered"
    );
    plane.api_server(0).process().thaw()?;
    request.await?;
    Ok(())
}

#[tokio::test]
async fn the_network_to_etcd_can_fail_and_recover() -> Result<()> {
    let plane = ControlPlane::start_with("the-network-to-etcd", Options { etcd_link: true }).await?;
    let client = plane.client().await?;
    create(&client, "before").await?;
    let delay = Duration::from_millis(300);
    plane.etcd_link()?.set(Fault::Delay(delay));
    let start = Instant::now();
    create(&client, "slow").await?;
    ensure!(start.elapsed() >= delay, "it took {:?}", start.elapsed());
    plane.etcd_link()?.set(Fault::Hang);
    ensure!(tokio::time::timeout(Duration::from_secs(1), create(&client, "never")).await.is_err());
    plane.etcd_link()?.set(Fault::None);
    until("writes after the fault", WAIT_TIMEOUT, async || create(&client, "after").await.map(drop)).await
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_ends_in_410_gone() -> Result<()> {
    let mut plane = ControlPlane::start("a-watch-from-before").await?;
    let client = plane.client().await?;
    let api = Api::<ConfigMap>::default_namespaced(client.clone());
    let old = api.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    for name in ["a", "b", "c"] {
        create(&client, name).await?;
    }
    plane.expire_watches().await?;
    let mut events = std::pin::pin!(api.watch(&WatchParams::default(), &old).await?);
    match events.next().await {
        Some(Ok(WatchEvent::Error(status))) if status.code == 410 => Ok(()),
        Some(Err(kube::Error::Api(status))) if status.code == 410 => Ok(()),
        other => bail!("not 410 Gone but {other:?}"),
    }
}

/// Starts a TLS server that answers every request with this JSON. Returns its port, and a channel with the heads of the requests.
async fn serve_json(
    host: IpAddr,
    identity: &Identity,
    json: Value,
) -> Result<(u16, tokio::sync::mpsc::UnboundedReceiver<String>)> {
    let chain = CertificateDer::pem_file_iter(&identity.certificate)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&identity.key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind((host, 0)).await?);
    let port = listener.local_addr()?.port();
    let (heads, receiver) = tokio::sync::mpsc::unbounded_channel();
    let (length, json) = (json.to_string().len(), json.to_string());
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer, heads) = (acceptor.clone(), answer.clone(), heads.clone());
            tokio::spawn(async move {
                let mut stream = BufReader::new(acceptor.accept(stream).await?);
                let mut head = String::new();
                while stream.read_line(&mut head).await? > 0 {
                    if head.ends_with("\r\n\r\n") {
                        let _ = heads.send(std::mem::take(&mut head));
                        stream.write_all(answer.as_bytes()).await?;
                        stream.flush().await?;
                    }
                }
                std::io::Result::Ok(())
            });
        }
    });
    Ok((port, receiver))
}

#[tokio::test]
async fn an_aggregated_api_server_gets_the_name_of_the_user() -> Result<()> {
    let plane = ControlPlane::start("an-aggregated-api-server").await?;
    let client = plane.client().await?;
    let host = address_for_endpoints()?;
    let authority = Authority::new("aggregated", &plane.folder().path().join("pki"))?;
    let identity = authority.server("aggregated", &["aggregated.default.svc"])?;
    let answer =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "e2e.proviso.dev/v1", "resources": []});
    let (port, mut heads) = serve_json(host, &identity, answer.clone()).await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "aggregated"}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
    }))?;
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &service).await?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "aggregated-1", "labels": {"kubernetes.io/service-name": "aggregated"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }))?;
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &slice).await?;
    let api_service: APIService = serde_json::from_value(json!({
        "metadata": {"name": "v1.e2e.proviso.dev"},
        "spec": {
            "group": "e2e.proviso.dev", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
            "service": {"namespace": "default", "name": "aggregated", "port": 443},
            "caBundle": base64::engine::general_purpose::STANDARD.encode(authority.pem()),
        },
    }))?;
    Api::<APIService>::all(client.clone()).create(&PostParams::default(), &api_service).await?;
    until("the aggregated API", WAIT_TIMEOUT, async || {
        let request = http::Request::get("/apis/e2e.proviso.dev/v1/hello").body(Vec::new())?;
        let answered = client.request::<Value>(request).await?;
        ensure!(answered == answer, "{answered}");
        Ok(())
    })
    .await?;
    // The API server sends the user name in a header, and authenticates with the certificate of the front proxy: see its flags
    // `--requestheader-…`.
    until("the name of the user", WAIT_TIMEOUT, async || {
        let head = heads.recv().await.context("the server ended")?.to_lowercase();
        ensure!(
            head.starts_with("get /apis/e2e.proviso.dev/v1/hello") && head.contains("x-remote-user: kubernetes-admin"),
            "{head}"
        );
        Ok(())
    })
    .await
}
