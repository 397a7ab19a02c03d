//! A cluster with Proviso in it, and what the flows do with it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::discovery::{Scope, pinned_kind};
use kube::{Client, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicyRevision, PolicyServer};
use proviso_e2e::{Helm, Image, Kubectl, Node, program, until};
use rustix::process::Pid;
use serde_json::{Value, json};

pub const PATIENCE: Duration = Duration::from_mins(2);
pub const NAMESPACE: &str = "proviso-system";
pub const REPLICAS: usize = 3;
/// How long a replaced generation goes on answering here, instead of five minutes.
pub const RETIRE_AFTER: Duration = Duration::from_secs(20);
/// The label of the operators' pods.
pub const OPERATORS: &str = "app.kubernetes.io/name=operator";
/// The label of the ConfigMaps that a policy decides about.
pub const LABEL: &str = "flow";

pub struct Stage {
    pub node: Node,
    pub client: Client,
    pub kubectl: Kubectl,
    /// The volume that the replicas share.
    pub cache: PathBuf,
    /// The folder with the plugins of kubectl: `kubectl-proviso`.
    pub plugins: PathBuf,
    /// Whether a policy that nobody could look at is written again until somebody does. One that nobody looked at in time always
    /// is: the machine may be busy.
    pub asks_again: AtomicBool,
}

impl Stage {
    pub async fn start() -> Result<Self> {
        let node = Node::start("flows").await?;
        let folder = node.control_plane().folder().path().to_owned();
        for name in ["operator", "policy-server"] {
            let stripped = folder.join(name);
            program::strip(&program::program(name)?, &stripped)?;
            // The second tag is the same program as a version to upgrade to.
            for tag in ["0.1.0", "next"] {
                let image = Image::new(format!("docker.io/proviso/{name}:{tag}"));
                let image = image.file(&stripped, format!("/{name}")).entrypoint([format!("/{name}")]);
                node.load(&image).await?;
            }
        }
        let cache = folder.join("cache");
        std::fs::create_dir_all(&cache)?;
        // Nobody changes the owner of such a volume for a pod.
        std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777))?;
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        std::os::unix::fs::symlink(program::program("proviso")?, plugins.join("kubectl-proviso"))?;
        let (client, kubectl) = (node.client().await?, node.kubectl()?);
        let stage = Self { node, client, kubectl, cache, plugins, asks_again: AtomicBool::new(false) };
        stage.install(&folder).await?;
        Ok(stage)
    }

    async fn install(&self, folder: &Path) -> Result<()> {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "cache"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "shared",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": self.cache},
            },
        });
        self.apply(&volume).await?;
        let values = json!({
            "image": {"pullPolicy": "Never"},
            "operator": {"retireAfter": format!("{}s", RETIRE_AFTER.as_secs())},
            "defaultPolicyServer": {"spec": {
                "replicas": REPLICAS,
                "minAvailable": 1,
                "cache": {"persistentVolumeClaim": {"storageClassName": "shared", "size": "1Gi"}},
                "sources": {"insecure": [self.node.registry_in_pods()]},
                // The replicas share two processors with everything else.
                "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
            }},
        });
        let file = folder.join("values.json");
        std::fs::write(&file, serde_json::to_vec(&values)?)?;
        let helm = Helm::new(self.node.kubeconfig())?;
        let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts");
        for (release, arguments) in
            [("proviso-crds", vec![]), ("proviso", vec!["-f", file.to_str().context("its path")?])]
        {
            let chart = charts.join(release);
            let chart = chart.to_str().context("its path")?;
            let mut all = vec![
                "upgrade",
                "--install",
                release,
                chart,
                "-n",
                NAMESPACE,
                "--create-namespace",
                "--wait=legacy",
                "--timeout=3m",
            ];
            all.extend(arguments);
            helm.run(&all).await?;
        }
        self.until_served("default", REPLICAS).await
    }

    /// Says where to look, and what the cluster looked like at the end.
    pub fn tell(&self) {
        eprintln!("logs: {}", self.node.control_plane().folder().path().display());
    }

    pub async fn apply(&self, object: &Value) -> Result<()> {
        let gvk = GroupVersionKind::try_from(serde_json::from_value::<TypeMeta>(object.clone())?)?;
        let (kind, capabilities) = pinned_kind(&self.client, &gvk).await?;
        let api: Api<DynamicObject> = match (capabilities.scope, object["metadata"]["namespace"].as_str()) {
            (Scope::Cluster, _) => Api::all_with(self.client.clone(), &kind),
            (_, Some(namespace)) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            (_, None) => Api::default_namespaced_with(self.client.clone(), &kind),
        };
        let name = object["metadata"]["name"].as_str().context("no name")?;
        api.patch(name, &PatchParams::apply("flows").force(), &Patch::Apply(object)).await?;
        Ok(())
    }

    pub fn policies(&self) -> Api<ClusterPolicy> {
        Api::all(self.client.clone())
    }

    pub fn servers(&self) -> Api<PolicyServer> {
        Api::all(self.client.clone())
    }

    pub fn revisions(&self) -> Api<PolicyRevision> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Writes a policy; its generation.
    pub async fn write(&self, name: &str, spec: &Value) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec,
        });
        let written = self.patch(name, &PatchParams::apply("flows").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("no generation")
    }

    /// Asks for the spec of an older generation.
    pub async fn roll_back(&self, name: &str, generation: i64) -> Result<()> {
        let annotation = json!({"metadata": {"annotations": {"proviso.dev/rollback-to": generation.to_string()}}});
        self.patch(name, &PatchParams::default(), &Patch::Merge(annotation)).await.map(drop)
    }

    async fn patch(&self, name: &str, how: &PatchParams, patch: &Patch<Value>) -> Result<ClusterPolicy> {
        let asks_again = self.asks_again.load(Ordering::Relaxed);
        let is_passing = |why: &str| {
            why.contains("failed calling webhook") && (asks_again || why.contains("context deadline exceeded"))
        };
        let looked_at = until("an operator that looks at it", PATIENCE, async || {
            match self.policies().patch(name, how, patch).await {
                Err(kube::Error::Api(status)) if is_passing(&status.message) => Err(status.into()),
                other => Ok(other),
            }
        });
        Ok(looked_at.await??)
    }

    /// Waits until this generation decides; how long that took.
    pub async fn until_live(&self, name: &str, generation: i64) -> Result<Duration> {
        let start = Instant::now();
        until(&format!("{name} {generation} to be live"), PATIENCE, async || {
            let policy = self.policies().get(name).await?;
            let status = policy.status.clone().unwrap_or_default();
            ensure!(status.live_generation == Some(generation), "{status:#?}");
            Ok(())
        })
        .await?;
        Ok(start.elapsed())
    }

    /// Waits until a condition of a policy has this status and reason; its message.
    pub async fn until_condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Result<String> {
        until(&format!("{name}: {kind} {status} {reason}"), PATIENCE, async || {
            let policy = self.policies().get(name).await?;
            let conditions = policy.status.clone().unwrap_or_default().conditions;
            let found = conditions.iter().find(|it| it.type_ == kind).context("no such condition")?;
            let is_newest = found.observed_generation == policy.metadata.generation;
            ensure!(is_newest && found.status == status && found.reason == reason, "{conditions:#?}");
            Ok(found.message.clone())
        })
        .await
    }

    /// What the API server says to somebody who makes a ConfigMap that this policy decides about: the message of the
    /// denial, or none.
    pub async fn ask(&self, name: &str) -> Result<Option<String>> {
        self.asker(name).ask().await
    }

    pub fn asker(&self, name: &str) -> Asker {
        Asker { maps: Api::default_namespaced(self.client.clone()), labels: json!({LABEL: name}) }
    }

    /// Deletes what was made when a policy was asked.
    pub async fn clear(&self, name: &str) -> Result<()> {
        let made = ListParams::default().labels(&format!("{LABEL}={name}"));
        self.asker(name).maps.delete_collection(&DeleteParams::default(), &made).await?;
        Ok(())
    }

    pub async fn until_denied(&self, name: &str, message: &str) -> Result<()> {
        until(&format!("{name} to deny with {message:?}"), PATIENCE, async || {
            let answer = self.ask(name).await?;
            ensure!(answer.as_deref() == Some(message), "{answer:?}");
            Ok(())
        })
        .await
    }

    /// Waits until every replica of a policy server, and no more, is Ready.
    pub async fn until_served(&self, server: &str, replicas: usize) -> Result<()> {
        until(&format!("{replicas} Ready replicas of {server}"), PATIENCE, async || {
            let pods = self.replicas_of(server).await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            ensure!(pods.len() == replicas && ready == replicas, "{ready} of {} pods are Ready", pods.len());
            Ok(())
        })
        .await
    }

    /// As many replicas as there were at first, and operators that answer.
    pub async fn restore(&self) -> Result<()> {
        self.change("default", json!({"replicas": REPLICAS})).await?;
        self.until_served("default", REPLICAS).await?;
        self.until_operated().await
    }

    /// Changes fields of a policy server's spec.
    pub async fn change(&self, server: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.servers().patch(server, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until every operator is Ready, and is the one that API servers ask.
    pub async fn until_operated(&self) -> Result<()> {
        // In a row, but not all within one look: a busy machine takes its time.
        let mut answered = 0;
        until("Ready operators", PATIENCE, async || {
            let operators = self.pods().list(&ListParams::default().labels(OPERATORS)).await?;
            let ready = operators.iter().filter(|pod| is_ready(pod)).count();
            ensure!(ready == 2 && operators.items.len() == 2, "{ready} of {} are Ready", operators.items.len());
            // The way to one that is gone may be open for a moment still.
            let only_try = PatchParams::apply("flows").force().dry_run();
            let policy = json!({
                "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "looked-at"},
                "spec": deny("looked-at", "no"),
            });
            while answered < 20 {
                let answer = self.policies().patch("looked-at", &only_try, &Patch::Apply(&policy)).await;
                answered = if answer.is_ok() { answered + 1 } else { 0 };
                answer?;
            }
            Ok(())
        })
        .await
    }

    pub async fn replicas_of(&self, server: &str) -> Result<Vec<Pod>> {
        let ours = ListParams::default().labels(&format!("proviso.dev/policy-server={server}"));
        Ok(self.pods().list(&ours).await?.items)
    }

    /// The pods of the policy server `default`, and how often their containers were started again.
    pub async fn restarts(&self) -> Result<Vec<(Option<String>, i32)>> {
        let pods = self.replicas_of("default").await?.into_iter();
        let restarts = |pod: &Pod| {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            statuses.map(|status| status.restart_count).sum()
        };
        Ok(pods.map(|pod| (pod.uid(), restarts(&pod))).collect())
    }

    /// The pod that leads the policy server `default`.
    pub async fn leader(&self) -> Result<String> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE);
        until("a leader", PATIENCE, async || {
            let spec = leases.get("policy-server-default").await?.spec.context("no spec")?;
            let holder = spec.holder_identity.context("nobody leads")?;
            Ok(holder.split_once('_').context("its identity")?.0.to_owned())
        })
        .await
    }

    /// The process of a pod's policy server.
    pub async fn process(&self, pod: &str) -> Result<Pid> {
        process_of(&self.pods().get(pod).await?, "policy-server")
    }

    /// Runs `proviso` as a person would; what it wrote.
    pub async fn proviso(&self, arguments: &[&str]) -> Result<String> {
        let output = tokio::process::Command::new(program::program("proviso")?)
            .args(arguments)
            .env("KUBECONFIG", self.node.kubeconfig())
            .kill_on_drop(true)
            .output()
            .await?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// Deletes a policy and waits until nothing of it is left.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.policies().delete(name, &DeleteParams::default()).await?;
        until(&format!("the end of {name}"), PATIENCE, async || {
            ensure!(self.policies().get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await?;
        ensure!(self.revisions_of(name).await?.is_empty(), "revisions are left");
        ensure!(self.webhook(name).await?.is_none(), "a webhook is left");
        Ok(())
    }

    /// The revisions of a cluster policy, oldest first.
    pub async fn revisions_of(&self, name: &str) -> Result<Vec<PolicyRevision>> {
        let all = self.revisions().list(&ListParams::default()).await?.items;
        let mut ours: Vec<_> = all
            .into_iter()
            .filter(|it| it.spec.policy_ref.name == name && it.spec.policy_ref.namespace.is_none())
            .collect();
        ours.sort_by_key(|it| it.spec.policy_ref.generation);
        Ok(ours)
    }

    /// The webhook of a cluster policy: where it points and what it covers.
    pub async fn webhook(&self, name: &str) -> Result<Option<Value>> {
        let mut found = self.configurations(name).await?;
        Ok(found.pop().map(|(_, configuration)| configuration.data["webhooks"][0].clone()))
    }

    /// The kinds of webhook configurations that a cluster policy has.
    pub async fn webhooks(&self, name: &str) -> Result<Vec<&'static str>> {
        Ok(self.configurations(name).await?.into_iter().map(|(kind, _)| kind).collect())
    }

    async fn configurations(&self, name: &str) -> Result<Vec<(&'static str, DynamicObject)>> {
        let mut all = Vec::new();
        for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
            let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            let api = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::from_gvk(&gvk));
            let found = api.get_opt(&format!("proviso-cluster.{name}")).await?;
            all.extend(found.map(|found| (kind, found)));
        }
        Ok(all)
    }
}

/// Asks the API server about one policy.
#[derive(Clone)]
pub struct Asker {
    maps: Api<ConfigMap>,
    labels: Value,
}

impl Asker {
    /// The same about objects with one more label.
    pub fn labelled(mut self, label: &str) -> Self {
        self.labels[label] = "".into();
        self
    }

    /// Only tries.
    pub async fn ask(&self) -> Result<Option<String>> {
        self.create(true).await
    }

    /// Makes one, unless it is denied.
    pub async fn make(&self) -> Result<Option<String>> {
        self.create(false).await
    }

    async fn create(&self, dry_run: bool) -> Result<Option<String>> {
        let map = json!({"metadata": {"generateName": "asked-", "labels": self.labels}});
        let parameters = PostParams { dry_run, ..PostParams::default() };
        match self.maps.create(&parameters, &serde_json::from_value(map)?).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.message.contains("denied the request: ") => {
                Ok(status.message.split_once("denied the request: ").map(|(_, message)| message.to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The process of a pod that runs this program.
pub fn process_of(pod: &Pod, program: &str) -> Result<Pid> {
    let uid = pod.uid().context("no uid")?;
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        // It may end while it is looked at.
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        if read("cmdline").split('\0').next() == Some(&format!("/{program}")) && read("cgroup").contains(&uid) {
            return Pid::from_raw(pid).context("no process");
        }
    }
    bail!("{} runs no {program}", pod.name_any())
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

/// What decides about ConfigMaps with the label of this name.
pub fn about(name: &str, program: &Value) -> Value {
    json!({
        "program": program,
        "admission": {
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "objectSelector": {"matchLabels": {LABEL: name}},
        },
    })
}

/// Denies everything with this message.
pub fn deny(name: &str, message: &str) -> Value {
    about(name, &json!({"cel": {"validations": [{"expression": "false", "message": message}]}}))
}
