//! A cluster with Proviso, and the functions that the flows use. `installation.rs` starts it.

use std::path::PathBuf;
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
use proviso_e2e::{Kubectl, Node, program, until};
use rustix::process::Pid;
use serde_json::{Value, json};

pub const WAIT_TIMEOUT: Duration = Duration::from_mins(2);
pub const NAMESPACE: &str = "proviso-system";
pub const REPLICAS: usize = 3;
/// The time for which a replaced generation still answers. The default of the operator is five minutes.
pub const RETIRE_AFTER: Duration = Duration::from_secs(20);
/// The label of the operators' pods.
pub const OPERATORS: &str = "app.kubernetes.io/name=operator";
/// The label of the `ConfigMap`s that a policy matches. Its value is the name of the policy.
pub const LABEL: &str = "flow";

/// A full node with Proviso.
pub struct TestCluster {
    pub node: Node,
    pub client: Client,
    pub kubectl: Kubectl,
    /// The volume that the replicas share.
    pub cache: PathBuf,
    /// The folder with the plugins of kubectl: `kubectl-proviso`.
    pub plugins: PathBuf,
    /// True if a write of a policy is repeated after any failure of the operator's admission webhook. A write is always repeated
    /// after a timeout of the webhook, because the machine may be busy.
    pub retries_webhook_failures: AtomicBool,
}

impl TestCluster {
    /// Prints the folder with the logs of the cluster.
    pub fn print_log_folder(&self) {
        eprintln!("logs: {}", self.node.control_plane().folder().path().display());
    }

    /// Applies an object of any kind.
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

    /// Writes a cluster policy. Returns its generation.
    pub async fn write(&self, name: &str, spec: &Value) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec,
        });
        let written = self.patch(name, &PatchParams::apply("flows").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("no generation")
    }

    /// Requests a rollback to an earlier generation.
    pub async fn roll_back(&self, name: &str, generation: i64) -> Result<()> {
        let annotation = json!({"metadata": {"annotations": {"proviso.dev/rollback-to": generation.to_string()}}});
        self.patch(name, &PatchParams::default(), &Patch::Merge(annotation)).await.map(drop)
    }

    /// Patches a cluster policy, and repeats the patch after transient failures of the operator's admission webhook.
    async fn patch(&self, name: &str, parameters: &PatchParams, patch: &Patch<Value>) -> Result<ClusterPolicy> {
        let retries = self.retries_webhook_failures.load(Ordering::Relaxed);
        let is_transient = |message: &str| {
            message.contains("failed calling webhook") && (retries || message.contains("context deadline exceeded"))
        };
        let patched = until("the operator's admission webhook", WAIT_TIMEOUT, async || {
            match self.policies().patch(name, parameters, patch).await {
                Err(kube::Error::Api(status)) if is_transient(&status.message) => Err(status.into()),
                other => Ok(other),
            }
        });
        Ok(patched.await??)
    }

    /// Waits until this generation is live. Returns the time that this took.
    pub async fn until_live(&self, name: &str, generation: i64) -> Result<Duration> {
        let start = Instant::now();
        until(&format!("{name} {generation} to be live"), WAIT_TIMEOUT, async || {
            let policy = self.policies().get(name).await?;
            let status = policy.status.clone().unwrap_or_default();
            ensure!(status.live_generation == Some(generation), "{status:#?}");
            Ok(())
        })
        .await?;
        Ok(start.elapsed())
    }

    /// Waits until a condition of a policy has this status and reason. Returns its message.
    pub async fn until_condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Result<String> {
        until(&format!("{name}: {kind} {status} {reason}"), WAIT_TIMEOUT, async || {
            let policy = self.policies().get(name).await?;
            let conditions = policy.status.clone().unwrap_or_default().conditions;
            let found = conditions.iter().find(|it| it.type_ == kind).context("no such condition")?;
            let is_newest = found.observed_generation == policy.metadata.generation;
            ensure!(is_newest && found.status == status && found.reason == reason, "{conditions:#?}");
            Ok(found.message.clone())
        })
        .await
    }

    /// Creates a `ConfigMap` that this policy matches, as a dry run. Returns the message of the denial; `None` if it is allowed.
    pub async fn denial(&self, name: &str) -> Result<Option<String>> {
        self.requester(name).dry_run().await
    }

    /// Returns a client that creates `ConfigMap`s which this policy matches.
    pub fn requester(&self, name: &str) -> Requester {
        Requester { maps: Api::default_namespaced(self.client.clone()), labels: json!({LABEL: name}) }
    }

    /// Deletes the `ConfigMap`s that [`Requester::create`] has created for this policy.
    pub async fn clear(&self, name: &str) -> Result<()> {
        let created = ListParams::default().labels(&format!("{LABEL}={name}"));
        self.requester(name).maps.delete_collection(&DeleteParams::default(), &created).await?;
        Ok(())
    }

    /// Waits until the policy denies with this message.
    pub async fn until_denied(&self, name: &str, message: &str) -> Result<()> {
        until(&format!("{name} to deny with {message:?}"), WAIT_TIMEOUT, async || {
            let answer = self.denial(name).await?;
            ensure!(answer.as_deref() == Some(message), "{answer:?}");
            Ok(())
        })
        .await
    }

    /// Waits until a policy server has exactly this number of pods, and all are Ready.
    pub async fn until_served(&self, server: &str, replicas: usize) -> Result<()> {
        until(&format!("{replicas} Ready replicas of {server}"), WAIT_TIMEOUT, async || {
            let pods = self.replicas_of(server).await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            ensure!(pods.len() == replicas && ready == replicas, "{ready} of {} pods are Ready", pods.len());
            Ok(())
        })
        .await
    }

    /// Restores the initial number of replicas, and waits until the operators answer.
    pub async fn restore(&self) -> Result<()> {
        self.change("default", json!({"replicas": REPLICAS})).await?;
        self.until_served("default", REPLICAS).await?;
        self.until_operators_answer().await
    }

    /// Changes fields of a policy server's spec.
    pub async fn change(&self, server: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.servers().patch(server, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until all operators are Ready and their admission webhook answers.
    pub async fn until_operators_answer(&self) -> Result<()> {
        // 20 answers in a row are enough. They may take several attempts of `until`, because the machine may be busy.
        let mut answered = 0;
        until("Ready operators", WAIT_TIMEOUT, async || {
            let operators = self.pods().list(&ListParams::default().labels(OPERATORS)).await?;
            let ready = operators.iter().filter(|pod| is_ready(pod)).count();
            ensure!(ready == 2 && operators.items.len() == 2, "{ready} of {} are Ready", operators.items.len());
            // The Service may still route to a deleted pod for a moment, so one answer is not enough.
            let dry_run = PatchParams::apply("flows").force().dry_run();
            let policy = json!({
                "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "dry-run"},
                "spec": deny("dry-run", "no"),
            });
            while answered < 20 {
                let answer = self.policies().patch("dry-run", &dry_run, &Patch::Apply(&policy)).await;
                answered = if answer.is_ok() { answered + 1 } else { 0 };
                answer?;
            }
            Ok(())
        })
        .await
    }

    /// Returns the pods of a policy server.
    pub async fn replicas_of(&self, server: &str) -> Result<Vec<Pod>> {
        let ours = ListParams::default().labels(&format!("proviso.dev/policy-server={server}"));
        Ok(self.pods().list(&ours).await?.items)
    }

    /// Returns the uids of the pods of the policy server `default`, with the number of restarts of their containers.
    pub async fn restarts(&self) -> Result<Vec<(Option<String>, i32)>> {
        let pods = self.replicas_of("default").await?.into_iter();
        let restarts = |pod: &Pod| {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            statuses.map(|status| status.restart_count).sum()
        };
        Ok(pods.map(|pod| (pod.uid(), restarts(&pod))).collect())
    }

    /// Returns the name of the pod that leads the policy server `default`.
    pub async fn leader(&self) -> Result<String> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE);
        until("a leader", WAIT_TIMEOUT, async || {
            let spec = leases.get("policy-server-default").await?.spec.context("no spec")?;
            let holder = spec.holder_identity.context("the Lease has no holder")?;
            Ok(holder.split_once('_').context("its identity")?.0.to_owned())
        })
        .await
    }

    /// Returns the process of the policy server in a pod.
    pub async fn process(&self, pod: &str) -> Result<Pid> {
        process_of(&self.pods().get(pod).await?, "policy-server")
    }

    /// Runs `proviso` as a user would. Returns the text of its standard output.
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

    /// Deletes a cluster policy, and waits until the policy, its revisions and its webhook are deleted.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.policies().delete(name, &DeleteParams::default()).await?;
        until(&format!("the end of {name}"), WAIT_TIMEOUT, async || {
            ensure!(self.policies().get_opt(name).await?.is_none(), "the policy still exists");
            Ok(())
        })
        .await?;
        ensure!(self.revisions_of(name).await?.is_empty(), "revisions are left over");
        ensure!(self.webhook(name).await?.is_none(), "a webhook is left over");
        Ok(())
    }

    /// Returns the revisions of a cluster policy, oldest first.
    pub async fn revisions_of(&self, name: &str) -> Result<Vec<PolicyRevision>> {
        let all = self.revisions().list(&ListParams::default()).await?.items;
        let mut ours: Vec<_> = all
            .into_iter()
            .filter(|it| it.spec.policy_ref.name == name && it.spec.policy_ref.namespace.is_none())
            .collect();
        ours.sort_by_key(|it| it.spec.policy_ref.generation);
        Ok(ours)
    }

    /// Returns the webhook of a cluster policy; `None` if it has none.
    pub async fn webhook(&self, name: &str) -> Result<Option<Value>> {
        let mut found = self.configurations(name).await?;
        Ok(found.pop().map(|(_, configuration)| configuration.data["webhooks"][0].clone()))
    }

    /// Returns the kinds of the webhook configurations of a cluster policy.
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

/// A client that creates `ConfigMap`s which one policy matches.
#[derive(Clone)]
pub struct Requester {
    maps: Api<ConfigMap>,
    labels: Value,
}

impl Requester {
    /// Adds a label to the `ConfigMap`s.
    pub fn labelled(mut self, label: &str) -> Self {
        self.labels[label] = "".into();
        self
    }

    /// Creates a `ConfigMap` as a dry run. Returns the message of the denial; `None` if it is allowed.
    pub async fn dry_run(&self) -> Result<Option<String>> {
        self.send(true).await
    }

    /// Creates a `ConfigMap`. Returns the message of the denial; `None` if it is allowed.
    pub async fn create(&self) -> Result<Option<String>> {
        self.send(false).await
    }

    async fn send(&self, dry_run: bool) -> Result<Option<String>> {
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

/// Returns the process of a pod that runs this program.
pub fn process_of(pod: &Pod, program: &str) -> Result<Pid> {
    let uid = pod.uid().context("no uid")?;
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        // The process may end before its files are read.
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        if read("cmdline").split('\0').next() == Some(&format!("/{program}")) && read("cgroup").contains(&uid) {
            return Pid::from_raw(pid).context("no process");
        }
    }
    bail!("{} runs no {program}", pod.name_any())
}

/// Returns true if the pod is Ready, and is not being deleted.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

/// Returns the spec of a policy that matches the `ConfigMap`s with the label of this name.
pub fn policy_spec(name: &str, program: &Value) -> Value {
    json!({
        "program": program,
        "admission": {
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "objectSelector": {"matchLabels": {LABEL: name}},
        },
    })
}

/// Returns the spec of a policy that denies everything with this message.
pub fn deny(name: &str, message: &str) -> Value {
    policy_spec(name, &json!({"cel": {"validations": [{"expression": "false", "message": message}]}}))
}
