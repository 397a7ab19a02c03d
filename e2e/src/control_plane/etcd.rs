//! The etcd of a control plane.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::process_host::ProcessHost;
use super::secrets::Secrets;
use crate::binaries::Programs;
use crate::pki::Identity;
use crate::port::Port;
use crate::process::{Invocation, Process};
use crate::{Folder, Proxy};

#[derive(Debug)]
pub(super) struct Etcd {
    process: Process,
    data: PathBuf,
    port: Port,
    _peer_port: Port,
    /// The forwarded port, if etcd runs in the network of a node.
    _forward: Option<Proxy>,
    client: Identity,
    authority: PathBuf,
}

impl Etcd {
    pub async fn start(
        process_host: &ProcessHost,
        folder: &Folder,
        programs: &Programs,
        secrets: &Secrets,
    ) -> Result<Self> {
        let (port, peer_port) = (Port::reserve()?, Port::reserve()?);
        let server = secrets.etcd.server("etcd", &["localhost", "127.0.0.1"])?;
        let client = secrets.etcd.client("kube-apiserver", None)?;
        let url = format!("https://127.0.0.1:{}", port.number());
        let peer_url = format!("http://127.0.0.1:{}", peer_port.number());
        let data = folder.path().join("etcd");
        let invocation = Invocation::new(&programs.etcd)
            .flag("name", "e2e")
            .flag("data-dir", &data)
            // The data of a test need not survive a power failure.
            .argument("--unsafe-no-fsync")
            .flag("listen-client-urls", &url)
            .flag("advertise-client-urls", &url)
            .flag("listen-peer-urls", &peer_url)
            .flag("initial-advertise-peer-urls", &peer_url)
            .flag("initial-cluster", format!("e2e={peer_url}"))
            .argument("--client-cert-auth")
            .flag("trusted-ca-file", secrets.etcd.certificate())
            .flag("cert-file", &server.certificate)
            .flag("key-file", &server.key);
        let process = Process::start("etcd", process_host.run(invocation), folder.log("etcd"))?;
        let forward = process_host.forward_port(port.number()).await?;
        let authority = secrets.etcd.certificate();
        Ok(Self { process, data, port, _peer_port: peer_port, _forward: forward, client, authority })
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Compacts etcd to its newest revision.
    pub async fn compact(&self) -> Result<()> {
        // The key does not exist, because only the header of the answer is used.
        let answer = self.call("range", &json!({"key": "AA=="})).await?;
        let revision = answer["header"]["revision"].as_str().context("the answer of etcd has no revision")?;
        self.call("compaction", &json!({"revision": revision, "physical": true})).await?;
        Ok(())
    }

    /// Calls a method of etcd's JSON gateway. The Kubernetes client is used as a client for JSON over TLS.
    async fn call(&self, method: &str, request: &Value) -> Result<Value> {
        let file = self.client.certificate.with_extension("kubeconfig");
        let server = format!("https://{}", self.address());
        let file = crate::kubeconfig::write(&file, &server, &self.authority, &self.client)?;
        let config: Config = crate::kubeconfig::config(&file).await?;
        let request = http::Request::post(format!("/v3/kv/{method}")).body(serde_json::to_vec(request)?)?;
        Ok(Client::try_from(config)?.request(request).await?)
    }
}

impl Drop for Etcd {
    /// Deletes the data, and keeps the logs. Each etcd allocates 128 MB, and there are more than a hundred runs.
    fn drop(&mut self) {
        self.process.kill();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
