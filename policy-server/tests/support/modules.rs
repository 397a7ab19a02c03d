//! A cluster with a registry and a cache that replicas share.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use hyper::StatusCode;
use proviso_e2e::{Access, Registry, until};
use serde_json::{Value, json};

use super::stage::{self, revision};
use super::{PATIENCE, Server, pod, wapc};

/// A control plane, a registry, and what is mounted into the pods of a policy server.
pub struct Stage {
    pub cluster: stage::Stage,
    pub registry: Registry,
    mounts: tempfile::TempDir,
}

impl Stage {
    /// As [`stage::Stage::start`].
    pub async fn start(test: &str) -> Result<Self> {
        Self::beside(test, stage::Stage::start(test)).await
    }

    /// As [`stage::Stage::alone`].
    pub async fn alone(test: &str) -> Result<Self> {
        Self::beside(test, stage::Stage::alone(test)).await
    }

    async fn beside(test: &str, cluster: impl Future<Output = Result<stage::Stage>>) -> Result<Self> {
        let registry = format!("{test}-registry");
        let (cluster, registry) = tokio::try_join!(cluster, Registry::start(&registry, Access::default()))?;
        let stage = Self { cluster, registry, mounts: tempfile::tempdir()? };
        stage.rotate(&[&key()])?;
        std::fs::write(stage.path("sources.yaml"), format!("insecureSources: ['{}']", stage.registry.address()))?;
        Ok(stage)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mounts.path().join(name)
    }

    /// Puts these signing keys in place.
    pub fn rotate(&self, keys: &[&str]) -> Result<()> {
        Ok(std::fs::write(self.path("signing.key"), keys.concat())?)
    }

    /// Starts a replica; the first one leads.
    pub async fn replica(&self, name: &str, cache: &Path) -> Result<Server> {
        stage::Stage::run(self.command(name, cache)).await
    }

    /// The command of a replica; its pod has this name, and its uid is the same.
    pub fn command(&self, name: &str, cache: &Path) -> Command {
        let mut command = self.cluster.command(name, name);
        let mounted = [
            ("--cache-dir", cache.to_owned()),
            ("--signing-key", self.path("signing.key")),
            ("--sources", self.path("sources.yaml")),
            ("--pull-secrets", self.path("pull-secrets")),
        ];
        for (flag, path) in mounted {
            command.arg(flag).arg(path);
        }
        command
    }

    pub async fn create(&self, name: &str, wasm: &Value) -> Result<()> {
        self.cluster.create(&revision(name, 1, &json!({"program": {"wasm": wasm}}))).await
    }

    pub fn module(&self, rest: &str) -> String {
        format!("registry://{}/{rest}", self.registry.address())
    }

    /// The files of compiled modules in the shared cache, with the times when they were written.
    pub fn compiled(&self) -> Vec<(PathBuf, std::time::SystemTime)> {
        let folders = std::fs::read_dir(self.path("cache/compiled")).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap().flatten());
        let mut files: Vec<_> = files.map(|file| (file.path(), file.metadata().unwrap().modified().unwrap())).collect();
        files.sort();
        files
    }
}

pub fn key() -> String {
    rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem()
}

pub fn denying(words: &str) -> Vec<u8> {
    wapc::answering(&json!({"accepted": false, "message": words}))
}

pub async fn until_answered(server: &Server, name: &str, message: &str) -> Result<()> {
    until(&format!("{name}: {message}"), PATIENCE, async || {
        let answer = server.post(&format!("/validate/cluster.{name}/1"), pod("u", "x").to_string()).await;
        ensure!(answer.status == StatusCode::OK, "{}\n{:#?}", answer.text, server.stderr.all());
        ensure!(answer.message() == message, "{}", answer.text);
        Ok(())
    })
    .await
}
