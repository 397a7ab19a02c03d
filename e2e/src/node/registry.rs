//! The OCI registry of a node: plain HTTP on loopback, which container runtimes accept there.

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::binaries::Component;
use crate::control_plane::{PATIENCE, Place};
use crate::port::Port;
use crate::process::{Invocation, Process};
use crate::{Folder, Proxy, until};

/// Reached under one name, inside and outside. Ends with this value.
#[derive(Debug)]
pub(super) struct Registry {
    process: Process,
    port: Port,
    _forward: Option<Proxy>,
}

impl Registry {
    pub async fn start(place: &Place, folder: &Folder) -> Result<Self> {
        let port = Port::reserve()?;
        let configuration = json!({
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {
                "filesystem": {"rootdirectory": folder.path().join("registry")},
                "delete": {"enabled": true},
            },
            "http": {"addr": format!("127.0.0.1:{}", port.number())},
        });
        let file = folder.path().join("registry.yaml");
        std::fs::write(&file, serde_yaml::to_string(&configuration)?)?;
        let program = Component::Registry.folder()?.join("registry");
        let invocation = Invocation::new(program)
            .argument("serve")
            .argument(file)
            // Else it looks for a collector of traces.
            .variable("OTEL_TRACES_EXPORTER", "none");
        let process = Process::start("registry", place.run(invocation), folder.log("registry"))?;
        let forward = place.reach(port.number()).await?;
        Ok(Self { process, port, _forward: forward })
    }

    pub async fn until_ready(&mut self) -> Result<()> {
        let config = kube::Config::new(format!("http://{}/", self.address()).parse()?);
        let client = kube::Client::try_from(config)?;
        until("a ready registry", PATIENCE, async || {
            self.process.ensure_running()?;
            let answer = client.request_text(http::Request::get("/v2/").body(Vec::new())?).await;
            answer.map(drop).with_context(|| format!("its log: {}", self.process.log().display()))
        })
        .await
    }

    /// `host:port`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }
}
