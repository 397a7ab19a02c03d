//! Starts a node, and installs Proviso on it with its charts.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use proviso_e2e::{Helm, Image, Node, program};
use serde_json::{Value, json};

use crate::test_cluster::{NAMESPACE, REPLICAS, RETIRE_AFTER, TestCluster};

/// The tag of the images of this version: the version of the charts.
pub const TAG: &str = "0.1.0";
/// The chart of the `CustomResourceDefinition`s. The release has the same name.
pub const CRDS: &str = "proviso-crds";
/// The chart of the operator and the policy server `default`. The release has the same name.
pub const PROVISO: &str = "proviso";

/// Returns the folder of this repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl TestCluster {
    /// Starts a node, and installs Proviso with its charts.
    pub async fn start() -> Result<Self> {
        let cluster = Self::without_proviso("flows").await?;
        for name in ["operator", "policy-server"] {
            // The second tag has the same program, for the test of an update of the policy server alone.
            cluster.load(name, &program::program(name)?, &[TAG, "next"]).await?;
        }
        cluster.install(&repository(), CRDS, &json!({})).await?;
        cluster.install(&repository(), PROVISO, &cluster.values()).await?;
        cluster.until_served("default", REPLICAS).await?;
        Ok(cluster)
    }

    /// Starts a node without Proviso. Its files are in `target/e2e/<name>/`.
    pub async fn without_proviso(name: &str) -> Result<Self> {
        let node = Node::start(name).await?;
        let folder = node.control_plane().folder().path().to_owned();
        let cache = folder.join("cache");
        std::fs::create_dir_all(&cache)?;
        // Kubernetes does not change the owner of a `hostPath` volume for a pod, so any user may write.
        std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777))?;
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        std::os::unix::fs::symlink(program::program("proviso")?, plugins.join("kubectl-proviso"))?;
        let (client, kubectl) = (node.client().await?, node.kubectl()?);
        let cluster = Self { node, client, kubectl, cache, plugins, retries_webhook_failures: AtomicBool::new(false) };
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "cache"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "shared",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": cluster.cache},
            },
        });
        cluster.apply(&volume).await?;
        Ok(cluster)
    }

    /// Loads a program into the node, as an image with each of these tags.
    pub async fn load(&self, name: &str, path: &Path, tags: &[&str]) -> Result<()> {
        let stripped = self.node.control_plane().folder().path().join(format!("{name}-{}", tags.join("-")));
        program::strip(path, &stripped)?;
        for tag in tags {
            let image = Image::new(format!("docker.io/proviso/{name}:{tag}"));
            let image = image.file(&stripped, format!("/{name}")).entrypoint([format!("/{name}")]);
            self.node.load(&image).await?;
        }
        Ok(())
    }

    /// Returns the values of the chart `proviso` for this cluster.
    pub fn values(&self) -> Value {
        json!({
            "image": {"pullPolicy": "Never"},
            "operator": {"retireAfter": format!("{}s", RETIRE_AFTER.as_secs())},
            "defaultPolicyServer": {"spec": {
                "replicas": REPLICAS,
                "minAvailable": 1,
                "cache": {"persistentVolumeClaim": {"storageClassName": "shared", "size": "1Gi"}},
                "sources": {"insecure": [self.node.registry_in_pods()]},
                // The replicas share two CPUs with all other processes.
                "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
            }},
        })
    }

    /// Installs a chart of this repository or of another version of it, or upgrades its release. The release has the name of the
    /// chart.
    pub async fn install(&self, source: &Path, chart: &str, values: &Value) -> Result<()> {
        let file = self.node.control_plane().folder().path().join(format!("{chart}.values.json"));
        std::fs::write(&file, serde_json::to_vec(values)?)?;
        let path = source.join("charts").join(chart);
        let (path, file) = (path.to_str().context("its path")?, file.to_str().context("its path")?);
        self.helm(&["upgrade", "--install", "--create-namespace", chart, path, "-f", file]).await
    }

    /// Runs a command of Helm in the namespace of Proviso, and waits for its effect.
    pub async fn helm(&self, arguments: &[&str]) -> Result<()> {
        let options = ["-n", NAMESPACE, "--wait=legacy", "--timeout=3m"];
        Helm::new(self.node.kubeconfig())?.run(&[arguments, &options].concat()).await.map(drop)
    }
}
