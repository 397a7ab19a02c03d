//! Replicas in a cluster and their modules: fetched from a registry, kept in a cache that all share, and served even
//! when that cache does not work.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::ApiResource;
use proviso_crds::PolicyRevision;
use proviso_e2e::{Access, ControlPlane, Kubectl, Registry, until};
use serde_json::{Value, json};
use support::{Folder, Server, pod, policy, wapc};

const PATIENCE: Duration = Duration::from_mins(1);

/// A control plane, a registry, and what is mounted into the pods of a policy server.
struct Stage {
    plane: ControlPlane,
    registry: Registry,
    mounts: tempfile::TempDir,
}

impl Stage {
    async fn start(test: &str) -> Result<Self> {
        let registry = format!("{test}-registry");
        let (plane, registry) =
            tokio::try_join!(ControlPlane::start(test), Registry::start(&registry, Access::default()))?;
        let kubectl = Kubectl::new(plane.kubeconfig())?;
        let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds");
        for (file, _) in proviso_crds::definitions() {
            kubectl.run(&["apply", "-f", crds.join(file).to_str().unwrap()]).await?;
        }
        kubectl.run(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"]).await?;
        let stage = Self { plane, registry, mounts: tempfile::tempdir()? };
        stage.rotate(&[&key()])?;
        std::fs::write(stage.path("sources.yaml"), format!("insecureSources: ['{}']", stage.registry.address()))?;
        Ok(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounts.path().join(name)
    }

    /// Puts these signing keys in place.
    fn rotate(&self, keys: &[&str]) -> Result<()> {
        Ok(std::fs::write(self.path("signing.key"), keys.concat())?)
    }

    /// Starts a replica; `leads` says whether it reports for all.
    async fn replica(&self, name: &str, leads: bool, cache: &Path) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_policy-server"));
        command
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(["--policy-server", "default", "--namespace", "default", "--pod-name", name, "--pod-uid", name])
            .args(["--leader", if leads { "true" } else { "false" }])
            .arg("--cache-dir")
            .arg(cache)
            .arg("--signing-key")
            .arg(self.path("signing.key"))
            .arg("--sources")
            .arg(self.path("sources.yaml"))
            .arg("--pull-secrets")
            .arg(self.path("pull-secrets"))
            .env("KUBECONFIG", self.plane.kubeconfig());
        Server::run(command, Folder::new()).await
    }

    async fn create(&self, name: &str, wasm: &Value) -> Result<()> {
        let policy: Value = serde_json::from_str(&policy(name, &json!({"program": {"wasm": wasm}})))?;
        let revision = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision",
            "metadata": {
                "name": format!("cluster.{name}-1"),
                "labels": {"proviso.dev/policy-server": "default"},
            },
            "spec": {
                "policyServer": "default",
                "policyRef": {"kind": "ClusterPolicy", "name": name, "uid": name, "generation": 1},
                "enabled": true,
                "data": policy["spec"],
            },
        });
        self.revisions().await?.create(&PostParams::default(), &serde_json::from_value(revision)?).await?;
        Ok(())
    }

    async fn revisions(&self) -> Result<Api<DynamicObject>> {
        Ok(Api::default_namespaced_with(self.plane.client().await?, &ApiResource::erase::<PolicyRevision>(&())))
    }

    fn module(&self, rest: &str) -> String {
        format!("registry://{}/{rest}", self.registry.address())
    }

    /// The files of compiled modules in the shared cache, with the times when they were written.
    fn compiled(&self) -> Vec<(PathBuf, std::time::SystemTime)> {
        let folders = std::fs::read_dir(self.path("cache/compiled")).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap().flatten());
        let mut files: Vec<_> = files.map(|file| (file.path(), file.metadata().unwrap().modified().unwrap())).collect();
        files.sort();
        files
    }
}

fn key() -> String {
    rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem()
}

fn denying(words: &str) -> Vec<u8> {
    wapc::answering(&json!({"accepted": false, "message": words}))
}

async fn until_answered(server: &Server, name: &str, message: &str) -> Result<()> {
    until(&format!("{name}: {message}"), PATIENCE, async || {
        let answer = server.post(&format!("/validate/cluster.{name}/1"), pod("u", "x").to_string()).await;
        ensure!(answer.status == StatusCode::OK, "{}\n{:#?}", answer.text, server.stderr.all());
        ensure!(answer.message() == message, "{}", answer.text);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn replicas_share_what_one_of_them_compiled_whatever_key_signs_it() -> Result<()> {
    let stage = Stage::start("replicas-share-a-cache").await?;
    stage.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    stage.create("a", &json!({"module": stage.module("a:v1")})).await?;
    let [old, new] = [key(), key()];
    stage.rotate(&[&old])?;
    let cache = stage.path("cache");
    let first = stage.replica("default-0", true, &cache).await;
    until_answered(&first, "a", "one").await?;
    let compiled = stage.compiled();
    ensure!(compiled.len() == 2, "the code and its signature: {compiled:?}");

    stage.rotate(&[&new, &old])?;
    let second = stage.replica("default-1", false, &cache).await;
    until_answered(&second, "a", "one").await?;
    ensure!(stage.compiled() == compiled, "it was compiled once");

    // Who has lost the key that signed it compiles for itself, and what it signs replaces what nobody trusts.
    stage.rotate(&[&new])?;
    let third = stage.replica("default-2", false, &cache).await;
    until_answered(&third, "a", "one").await?;
    ensure!(third.event("cached module refused").context("it was taken")?["reason"] == "CacheError");
    ensure!(stage.compiled() != compiled);

    // Keys that are no keys change nothing for who runs.
    stage.rotate(&["no key"])?;
    stage.registry.push("b", "v1", Registry::MODULE, &denying("two")).await?;
    stage.create("b", &json!({"module": stage.module("b:v1")})).await?;
    for server in [&first, &third] {
        until_answered(server, "b", "two").await?;
    }
    until("the warning", PATIENCE, async || {
        third.event("new signing keys refused, the old ones stay").map(drop).context("nothing in the log")
    })
    .await
}

#[tokio::test]
async fn a_cache_that_does_not_work_keeps_no_policy_from_being_served() -> Result<()> {
    let stage = Stage::start("a-broken-cache").await?;
    stage.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    stage.create("a", &json!({"module": stage.module("a:v1")})).await?;
    // Where the folder should be there is a file: nothing can be read or written.
    let cache = stage.path("cache");
    std::fs::write(&cache, "no folder")?;
    let server = stage.replica("default-0", true, &cache).await;
    until_answered(&server, "a", "one").await?;
    ensure!(server.event("compiled module not kept").context("it was kept")?["reason"] == "CacheError");

    // It is used as soon as it works.
    std::fs::remove_file(&cache)?;
    stage.registry.push("b", "v1", Registry::MODULE, &denying("two")).await?;
    stage.create("b", &json!({"module": stage.module("b:v1")})).await?;
    until_answered(&server, "b", "two").await?;
    until("the module in the cache", PATIENCE, async || {
        let compiled = stage.compiled();
        ensure!(compiled.len() == 2, "{compiled:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_module_that_cannot_be_had_says_why_and_is_tried_again() -> Result<()> {
    let stage = Stage::start("modules-that-cannot-be-had").await?;
    stage.registry.push("text", "v1", "text/plain", b"no module").await?;
    stage.registry.push("other", "v1", Registry::MODULE, &denying("other")).await?;
    let server = stage.replica("default-0", true, &stage.path("cache")).await;
    let digest = format!("sha256:{}", "0".repeat(64));
    for (name, wasm, reason, message) in [
        ("later", json!({"module": stage.module("later:v1")}), "PullError", "there is no"),
        ("text", json!({"module": stage.module("text:v1")}), "PullError", "text/plain"),
        (
            "other",
            json!({"module": stage.module("other:v1"), "digest": digest}),
            "VerificationError",
            "which the policy",
        ),
        (
            "secret",
            json!({"module": stage.module("other:v1"), "imagePullSecrets": [{"name": "pull"}]}),
            "PullError",
            "spec.program.wasm.imagePullSecrets: names the Secret \"pull\", which this policy server does not have",
        ),
        ("metadata", json!({"module": "https://169.254.169.254/a.wasm"}), "PullError", "link-local"),
    ] {
        stage.create(name, &wasm).await?;
        until(&format!("{name} reported"), PATIENCE, async || {
            let status = stage.revisions().await?.get(&format!("cluster.{name}-1")).await?.data["status"].clone();
            let item = &status["replicas"][0];
            ensure!(item["ready"] == "False" && item["reason"] == reason, "{name}: {status:#}");
            ensure!(item["message"].as_str().unwrap().contains(message), "{name}: {status:#}");
            Ok(())
        })
        .await?;
    }
    stage.registry.push("later", "v1", Registry::MODULE, &denying("later")).await?;
    until_answered(&server, "later", "later").await
}
