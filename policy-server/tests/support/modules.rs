//! A test environment of a cluster, a registry, and a cache that replicas share.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use hyper::StatusCode;
use proviso_e2e::{Access, Registry, until};
use serde_json::{Value, json};

use super::cluster::{TestEnv, revision};
use super::{Server, WAIT_TIMEOUT, pod, wapc};

/// A control plane, a registry, and the files that are mounted into the pods of a policy server.
pub struct RegistryEnv {
    pub cluster: TestEnv,
    pub registry: Registry,
    mounts: tempfile::TempDir,
}

impl RegistryEnv {
    /// Starts a registry beside the environment of [`TestEnv::start`].
    pub async fn start(test: &str) -> Result<Self> {
        Self::with_registry(test, TestEnv::start(test)).await
    }

    /// Starts a registry beside the environment of [`TestEnv::start_dedicated`].
    pub async fn start_dedicated(test: &str) -> Result<Self> {
        Self::with_registry(test, TestEnv::start_dedicated(test)).await
    }

    async fn with_registry(test: &str, cluster: impl Future<Output = Result<TestEnv>>) -> Result<Self> {
        let registry = format!("{test}-registry");
        let (cluster, registry) = tokio::try_join!(cluster, Registry::start(&registry, Access::default()))?;
        let env = Self { cluster, registry, mounts: tempfile::tempdir()? };
        env.rotate(&[&key()])?;
        std::fs::write(env.path("sources.yaml"), format!("insecureSources: ['{}']", env.registry.address()))?;
        Ok(env)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mounts.path().join(name)
    }

    /// Writes the file of the signing keys.
    pub fn rotate(&self, keys: &[&str]) -> Result<()> {
        Ok(std::fs::write(self.path("signing.key"), keys.concat())?)
    }

    /// Starts a replica. The first replica becomes the leader.
    pub async fn replica(&self, name: &str, cache: &Path) -> Result<Server> {
        TestEnv::run(self.command(name, cache)).await
    }

    /// Returns the command of a replica. The name of its pod is also the uid of the pod.
    pub fn command(&self, name: &str, cache: &Path) -> Command {
        self.command_of(name, name, cache)
    }

    /// Returns the command of the replica of a pod.
    pub fn command_of(&self, pod: &str, pod_uid: &str, cache: &Path) -> Command {
        let mut command = self.cluster.command(pod, pod_uid);
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

    /// Returns the files of compiled modules in the shared cache, with their modification times.
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
    until(&format!("{name}: {message}"), WAIT_TIMEOUT, async || {
        let answer = server.post(&format!("/validate/cluster.{name}/1"), pod("u", "x").to_string()).await;
        ensure!(answer.status == StatusCode::OK, "{}\n{:#?}", answer.text, server.stderr.all());
        ensure!(answer.message() == message, "{}", answer.text);
        Ok(())
    })
    .await
}
