//! An OCI registry on loopback. It uses plain HTTP, which container runtimes accept on loopback, or HTTPS, and optionally a
//! password.

use anyhow::{Context as _, Result, ensure};

use base64::Engine as _;
use http::{Method, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::net::Ipv4Addr;

use crate::binaries::Tier;
use crate::control_plane::ProcessHost;
use crate::pki::Identity;
use crate::port::Port;
use crate::process::{Invocation, Process};
use crate::until::WAIT_TIMEOUT;
use crate::{Folder, Proxy, until};

/// A running registry. It has the same address inside and outside of a node, and ends when this value is dropped.
#[derive(Debug)]
pub struct Registry {
    process: Process,
    port: Port,
    access: Access,
    _forward: Option<Proxy>,
    _folder: Option<Folder>,
}

/// The authentication and the protocol of a registry.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Requires [`Registry::USER`] and [`Registry::PASSWORD`]. Default: false.
    pub password: bool,
    /// Uses HTTPS with this certificate, which must be for 127.0.0.1; `None` uses plain HTTP.
    pub tls: Option<Identity>,
}

impl Registry {
    pub const USER: &str = "puller";
    pub const PASSWORD: &str = "opens-sesame";
    /// The output of `htpasswd -nbB -C 4 puller opens-sesame`.
    const HTPASSWD: &str = "puller:$2b$04$abcdefghijklmnopqrstuu8CgMPszKSb1Ff8O0bgIRbYzMrh2oxKO\n";
    /// The media type of a module's layer, as Kubewarden's tools push it.
    pub const MODULE: &str = "application/vnd.wasm.content.layer.v1+wasm";

    /// Starts a registry as a plain process, and waits until it answers. Its files are in `target/e2e/<name>/`.
    ///
    /// # Errors
    /// If the registry does not start.
    pub async fn start(name: &str, access: Access) -> Result<Self> {
        let folder = Folder::new(name)?;
        let mut registry = Self::start_in(&ProcessHost::loopback(), Ipv4Addr::LOCALHOST, &folder, access).await?;
        registry.until_ready().await?;
        Ok(Self { _folder: Some(folder), ..registry })
    }

    /// Starts a registry on a host. It listens on the address `listen`, which must include loopback.
    pub(crate) async fn start_in(
        process_host: &ProcessHost,
        listen: Ipv4Addr,
        folder: &Folder,
        access: Access,
    ) -> Result<Self> {
        let port = Port::reserve()?;
        let mut configuration = json!({
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {
                "filesystem": {"rootdirectory": folder.path().join("registry")},
                "delete": {"enabled": true},
            },
            "http": {"addr": format!("{listen}:{}", port.number())},
        });
        if access.password {
            let file = folder.path().join("htpasswd");
            std::fs::write(&file, Self::HTPASSWD)?;
            configuration["auth"] = json!({"htpasswd": {"realm": "registry", "path": file}});
        }
        if let Some(Identity { certificate, key }) = &access.tls {
            configuration["http"]["tls"] = json!({"certificate": certificate, "key": key});
        }
        let file = folder.path().join("registry.yaml");
        std::fs::write(&file, serde_yaml::to_string(&configuration)?)?;
        // The build is blocking, and must not stop other tasks.
        let program = tokio::task::spawn_blocking(|| Tier::Registry.folder()).await??.join("registry");
        let invocation = Invocation::new(program)
            .argument("serve")
            .argument(file)
            // By default the registry tries to connect to a collector of traces.
            .variable("OTEL_TRACES_EXPORTER", "none");
        let process = Process::start("registry", process_host.run(invocation), folder.log("registry"))?;
        let forward = process_host.forward_port(port.number()).await?;
        Ok(Self { process, port, access, _forward: forward, _folder: None })
    }

    pub(crate) async fn until_ready(&mut self) -> Result<()> {
        until("a ready registry", WAIT_TIMEOUT, async || {
            self.process.ensure_running()?;
            let answer = self.send(Method::GET, "/v2/", "", Vec::new()).await;
            answer.map(drop).with_context(|| format!("its log: {}", self.process.log().display()))
        })
        .await
    }

    /// Returns `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the process, to kill, freeze and restart it. A restart keeps the artifacts.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Pushes an artifact with one layer of this media type, as `crane` or `kwctl push` do. Returns the digest of its manifest.
    ///
    /// # Errors
    /// If the registry refuses the artifact.
    pub async fn push(&self, repository: &str, tag: &str, media_type: &str, content: &[u8]) -> Result<String> {
        let config = self.upload(repository, b"{}").await?;
        let layer = self.upload(repository, content).await?;
        let descriptor = |media_type: &str, digest: &str, size: usize| json!({"mediaType": media_type, "digest": digest, "size": size});
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest: Value = json!({
            "schemaVersion": 2,
            "mediaType": kind,
            "config": descriptor("application/vnd.wasm.config.v1+json", &config, 2),
            "layers": [descriptor(media_type, &layer, content.len())],
        });
        self.push_manifest(repository, tag, &manifest).await
    }

    /// Pushes a manifest or an index, which has its `mediaType`. The blobs that it names must exist. With an empty name, its
    /// digest is the name. Returns the digest.
    ///
    /// # Errors
    /// If the manifest has no media type, or the registry refuses it.
    pub async fn push_manifest(&self, repository: &str, name: &str, manifest: &Value) -> Result<String> {
        let kind = manifest["mediaType"].as_str().context("a manifest without a type")?;
        let bytes = serde_json::to_vec(manifest)?;
        let digest = digest(&bytes);
        let name = if name.is_empty() { &digest } else { name };
        self.send(Method::PUT, &format!("/v2/{repository}/manifests/{name}"), kind, bytes).await?;
        Ok(digest)
    }

    /// Removes a blob from a repository.
    ///
    /// # Errors
    /// If the blob does not exist.
    pub async fn delete_blob(&self, repository: &str, content: &[u8]) -> Result<()> {
        let path = format!("/v2/{repository}/blobs/{}", digest(content));
        self.send(Method::DELETE, &path, "", Vec::new()).await.map(drop)
    }

    /// Uploads a blob. Returns its digest.
    ///
    /// # Errors
    /// If the registry refuses the blob.
    pub async fn upload(&self, repository: &str, content: &[u8]) -> Result<String> {
        let started = self.send(Method::POST, &format!("/v2/{repository}/blobs/uploads/"), "", Vec::new()).await?;
        let location = started.headers()["location"].to_str()?;
        let path = location.find("/v2/").map(|start| &location[start..]).context("not a path of the registry")?;
        let digest = digest(content);
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}digest={digest}");
        self.send(Method::PUT, &path, "application/octet-stream", content.to_vec()).await?;
        Ok(digest)
    }

    /// Sends a request. Any other status than 200, 201 and 202 is an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        content: Vec<u8>,
    ) -> Result<http::Response<Body>> {
        let scheme = if self.access.tls.is_some() { "https" } else { "http" };
        let mut config = kube::Config::new(format!("{scheme}://{}/", self.address()).parse()?);
        // The certificate is not checked, because this is the harness's own registry.
        config.accept_invalid_certs = true;
        let mut request = http::Request::builder().method(&method).uri(path);
        if !media_type.is_empty() {
            request = request.header("content-type", media_type);
        }
        if self.access.password {
            let pair = format!("{}:{}", Self::USER, Self::PASSWORD);
            let pair = base64::engine::general_purpose::STANDARD.encode(pair);
            request = request.header("authorization", format!("Basic {pair}"));
        }
        let request = request.body(Body::from(content))?;
        let answer = kube::Client::try_from(config)?.send(request).await?;
        let successes = [StatusCode::OK, StatusCode::CREATED, StatusCode::ACCEPTED];
        ensure!(successes.contains(&answer.status()), "{method} {path}: {}", answer.status());
        Ok(answer)
    }
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", crate::hexadecimal(&Sha256::digest(content)))
}
