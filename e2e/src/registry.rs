//! An OCI registry on loopback: plain HTTP, which container runtimes accept there, or with a certificate and a password.

use anyhow::{Context as _, Result, ensure};

use base64::Engine as _;
use http::{Method, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::net::Ipv4Addr;

use crate::binaries::Tier;
use crate::control_plane::Place;
use crate::pki::Identity;
use crate::port::Port;
use crate::process::{Invocation, Process};
use crate::until::PATIENCE;
use crate::{Folder, Proxy, until};

/// Reached under one name, inside a node and outside. Ends with this value.
#[derive(Debug)]
pub struct Registry {
    process: Process,
    port: Port,
    access: Access,
    _forward: Option<Proxy>,
    _folder: Option<Folder>,
}

/// How a registry is spoken to.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// With [`Registry::USER`] and [`Registry::PASSWORD`] only.
    pub password: bool,
    /// HTTPS with this certificate, which has to be for 127.0.0.1.
    pub tls: Option<Identity>,
}

impl Registry {
    pub const USER: &str = "puller";
    pub const PASSWORD: &str = "opens-sesame";
    /// The line of `htpasswd -nbB -C 4 puller opens-sesame`.
    const HTPASSWD: &str = "puller:$2b$04$abcdefghijklmnopqrstuu8CgMPszKSb1Ff8O0bgIRbYzMrh2oxKO\n";
    /// The layer of a module that Kubewarden's tools push.
    pub const MODULE: &str = "application/vnd.wasm.content.layer.v1+wasm";

    /// Starts one as a plain process and waits until it answers; its files are in `target/e2e/<name>/`.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start(name: &str, access: Access) -> Result<Self> {
        let folder = Folder::new(name)?;
        let mut registry = Self::start_in(&Place::loopback(), Ipv4Addr::LOCALHOST, &folder, access).await?;
        registry.until_ready().await?;
        Ok(Self { _folder: Some(folder), ..registry })
    }

    /// In a place where it listens on this address, and on loopback at least.
    pub(crate) async fn start_in(place: &Place, listen: Ipv4Addr, folder: &Folder, access: Access) -> Result<Self> {
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
        // Building it must not hold up what goes on beside it.
        let program = tokio::task::spawn_blocking(|| Tier::Registry.folder()).await??.join("registry");
        let invocation = Invocation::new(program)
            .argument("serve")
            .argument(file)
            // Else it looks for a collector of traces.
            .variable("OTEL_TRACES_EXPORTER", "none");
        let process = Process::start("registry", place.run(invocation), folder.log("registry"))?;
        let forward = place.reach(port.number()).await?;
        Ok(Self { process, port, access, _forward: forward, _folder: None })
    }

    pub(crate) async fn until_ready(&mut self) -> Result<()> {
        until("a ready registry", PATIENCE, async || {
            self.process.ensure_running()?;
            let answer = self.ask(Method::GET, "/v2/", "", Vec::new()).await;
            answer.map(drop).with_context(|| format!("its log: {}", self.process.log().display()))
        })
        .await
    }

    /// `host:port`
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    /// To be ended, restarted or frozen. What was pushed survives.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Pushes an artifact of one layer of this type, as `crane` or `kwctl push` would; the digest of its manifest.
    ///
    /// # Errors
    /// If the registry does not take it.
    pub async fn push(&self, repository: &str, tag: &str, media_type: &str, content: &[u8]) -> Result<String> {
        let config = self.upload(repository, b"{}").await?;
        let layer = self.upload(repository, content).await?;
        let described = |media_type: &str, digest: &str, size: usize| json!({"mediaType": media_type, "digest": digest, "size": size});
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest: Value = json!({
            "schemaVersion": 2,
            "mediaType": kind,
            "config": described("application/vnd.wasm.config.v1+json", &config, 2),
            "layers": [described(media_type, &layer, content.len())],
        });
        self.push_manifest(repository, tag, &manifest).await
    }

    /// Pushes a manifest, or an index, that says of which type it is. What it names must be there, and without a name it has
    /// its digest's. Returns that.
    ///
    /// # Errors
    /// If the registry does not take it.
    pub async fn push_manifest(&self, repository: &str, name: &str, manifest: &Value) -> Result<String> {
        let kind = manifest["mediaType"].as_str().context("a manifest without a type")?;
        let bytes = serde_json::to_vec(manifest)?;
        let digest = digest(&bytes);
        let name = if name.is_empty() { &digest } else { name };
        self.ask(Method::PUT, &format!("/v2/{repository}/manifests/{name}"), kind, bytes).await?;
        Ok(digest)
    }

    /// Removes a blob from a repository.
    ///
    /// # Errors
    /// If it is not there.
    pub async fn delete_blob(&self, repository: &str, content: &[u8]) -> Result<()> {
        let path = format!("/v2/{repository}/blobs/{}", digest(content));
        self.ask(Method::DELETE, &path, "", Vec::new()).await.map(drop)
    }

    /// Uploads a blob; its digest.
    ///
    /// # Errors
    /// If the registry does not take it.
    pub async fn upload(&self, repository: &str, content: &[u8]) -> Result<String> {
        let begun = self.ask(Method::POST, &format!("/v2/{repository}/blobs/uploads/"), "", Vec::new()).await?;
        let location = begun.headers()["location"].to_str()?;
        let path = location.find("/v2/").map(|start| &location[start..]).context("not a path of the registry")?;
        let digest = digest(content);
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}digest={digest}");
        self.ask(Method::PUT, &path, "application/octet-stream", content.to_vec()).await?;
        Ok(digest)
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        content: Vec<u8>,
    ) -> Result<http::Response<Body>> {
        let scheme = if self.access.tls.is_some() { "https" } else { "http" };
        let mut config = kube::Config::new(format!("{scheme}://{}/", self.address()).parse()?);
        // Who asks is this harness, about its own registry.
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
        let fine = [StatusCode::OK, StatusCode::CREATED, StatusCode::ACCEPTED];
        ensure!(fine.contains(&answer.status()), "{method} {path}: {}", answer.status());
        Ok(answer)
    }
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", crate::hexadecimal(&Sha256::digest(content)))
}
