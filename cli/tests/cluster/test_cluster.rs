//! A control plane with the kinds of Proviso, and functions that write what the operator and the policy server would write.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::events::{self, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use proviso_core::experiment::etag;
use proviso_crds::fixtures::{condition, replica};
use proviso_crds::{Policy, PolicyExperiment, PolicyRevision};
use proviso_e2e::{ControlPlane, Kubectl, manifests, until};
use serde_json::{Value, json};
use tokio::process::Command;

/// The time limit of waiting for a condition.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
/// The namespace of the operator and of the revisions.
const NAMESPACE: &str = "proviso-system";
/// The namespace of the policies.
pub const TEAM: &str = "team";
pub const ROLLBACK_TO: &str = "proviso.dev/rollback-to";
/// The leader's message about a program that does not compile.
pub const MESSAGE: &str = "spec.program.cel.validations[0].expression: undeclared reference to 'parms'";

/// A running control plane, with or without the kinds of Proviso.
pub struct TestCluster {
    pub client: Client,
    kubectl: Kubectl,
    pub plane: ControlPlane,
}

/// The exit code and the output of the program.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Output {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("{self:?}"))
    }
}

impl TestCluster {
    /// Starts a control plane without the kinds of Proviso.
    pub async fn start(name: &str) -> Result<Self> {
        let plane = ControlPlane::start(name).await?;
        let kubectl = Kubectl::new(plane.kubeconfig())?;
        let client = plane.client().await?;
        for name in [NAMESPACE, TEAM] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            manifests::apply(&client, &namespace.to_string()).await?;
        }
        Ok(Self { client, kubectl, plane })
    }

    /// Starts a control plane with the kinds of Proviso.
    pub async fn with_kinds(name: &str) -> Result<Self> {
        let cluster = Self::start(name).await?;
        manifests::apply_crds(&cluster.client, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crds"))).await?;
        Ok(cluster)
    }

    /// Runs the program as an administrator.
    pub async fn proviso(&self, arguments: &[&str]) -> Result<Output> {
        run("proviso", self.plane.kubeconfig(), arguments).await
    }

    /// Writes a changed copy of the kubeconfig, and returns its path.
    pub fn kubeconfig(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<PathBuf> {
        let text = std::fs::read_to_string(self.plane.kubeconfig())?;
        let mut config: Value = serde_yaml::from_str(&text)?;
        change(&mut config);
        let file = self.plane.folder().path().join(format!("{name}.kubeconfig"));
        std::fs::write(&file, serde_yaml::to_string(&config)?)?;
        Ok(file)
    }

    /// Returns the kubeconfig of a user that has only these permissions in the namespace `team`.
    pub async fn user(&self, name: &str, verbs: &str, resources: &str) -> Result<PathBuf> {
        let (verb_list, resource_list) = (format!("--verb={verbs}"), format!("--resource={resources}"));
        self.kubectl.run(&["create", "role", name, &verb_list, &resource_list, "-n", TEAM]).await?;
        let (role, user) = (format!("--role={name}"), format!("--user={name}"));
        self.kubectl.run(&["create", "rolebinding", name, &role, &user, "-n", TEAM]).await?;
        let first = |list: &str| list.split(',').next().unwrap_or_default().to_owned();
        self.kubectl.by(name, &[]).until_permitted(&first(verbs), &first(resources), TEAM).await?;
        self.kubeconfig(name, |config| config["users"][0]["user"]["as"] = json!(name))
    }

    pub fn policies(&self) -> Api<Policy> {
        Api::namespaced(self.client.clone(), TEAM)
    }

    /// Creates the Policy of this name, or updates it, which gives a new generation.
    pub async fn policy(&self, name: &str, label: &str) -> Result<Policy> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name}, "spec": spec(label),
        });
        Ok(self.policies().patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?)
    }

    pub async fn cluster_policy(&self, name: &str) -> Result<()> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": spec("owner"),
        });
        let file = self.plane.folder().path().join("policy.json");
        std::fs::write(&file, policy.to_string())?;
        self.kubectl.run(&["create", "-f", file.to_str().unwrap()]).await?;
        Ok(())
    }

    /// Writes the status of a policy, as the operator would.
    pub async fn status(&self, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.policies().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Creates a revision of a policy, as the operator would, and writes its status, as the policy server would.
    async fn revision(&self, policy: &Policy, generation: i64, label: &str, status: Value) -> Result<()> {
        let revisions = Api::<PolicyRevision>::namespaced(self.client.clone(), NAMESPACE);
        let name = format!("ns.{TEAM}.{}-{generation}", policy.name_any());
        let uid = policy.uid().context("a uid")?;
        let revision = json!({
            "metadata": {"name": name, "labels": {"proviso.dev/policy-uid": uid, "proviso.dev/policy-server": "default"}},
            "spec": {
                "policyServer": "default", "enabled": true, "data": spec(label),
                "policyRef": {
                    "kind": "Policy", "namespace": TEAM, "name": policy.name_any(), "uid": uid, "generation": generation,
                },
            },
        });
        revisions.create(&PostParams::default(), &serde_json::from_value(revision)?).await?;
        let patch = Patch::Merge(json!({"status": status}));
        revisions.patch_status(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub async fn event(&self, policy: &Policy, type_: EventType, reason: &str, note: &str) -> Result<()> {
        let reporter = Reporter { controller: "proviso-operator".to_owned(), instance: None };
        let event = events::Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: "Rollout".to_owned(),
            secondary: None,
        };
        Recorder::new(self.client.clone(), reporter).publish(&event, &policy.object_ref(&())).await?;
        Ok(())
    }

    /// Creates the policy `labels` whose generation 2 does not compile, and whose generation 1 is live.
    pub async fn failed_update(&self) -> Result<Policy> {
        self.policy("labels", "owner").await?;
        let policy = self.policy("labels", "team").await?;
        ensure!(policy.metadata.generation == Some(2));
        self.status("labels", failed(2, 1)).await?;
        let replica = replica("policy-server-default-0", "u", "True", "Loaded");
        let live = json!({"conditions": [condition("Live", "True", "Live", "", 1)], "replicas": [replica]});
        self.revision(&policy, 1, "owner", live).await?;
        let broken = json!({"conditions": [condition("Initialized", "False", "CompileError", MESSAGE, 2)]});
        self.revision(&policy, 2, "team", broken).await?;
        self.event(&policy, EventType::Warning, "CompileError", &format!("generation 2: {MESSAGE}")).await?;
        Ok(policy)
    }

    pub fn experiments(&self) -> Api<PolicyExperiment> {
        Api::namespaced(self.client.clone(), TEAM)
    }

    /// Writes a file, and returns its path.
    pub fn file(&self, name: &str, content: &Value) -> Result<String> {
        let file = self.plane.folder().path().join(name);
        std::fs::write(&file, content.to_string())?;
        Ok(file.to_str().context("UTF-8")?.to_owned())
    }

    /// Changes the spec of an experiment, which gives a new generation.
    pub async fn change_experiment(&self, name: &str, label: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"policy": {"settings": {"label": label}}}}));
        self.experiments().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Writes the status of an experiment at generation 1 that every replica previews. It has evaluated `evaluated` requests; the
    /// verdicts of 10 of them differ, if there are that many.
    pub async fn preview(&self, name: &str, evaluated: u64) -> Result<PolicyExperiment> {
        self.experiment_status(name, previewing(evaluated)).await
    }

    /// Changes the etag of the live version in the status of an experiment, as if the policy had changed.
    pub async fn live_etag(&self, name: &str, etag: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"status": {"liveEtag": etag}}));
        self.experiments().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Writes the status of an experiment whose program does not compile.
    pub async fn broken(&self, name: &str, message: &str) -> Result<()> {
        let conditions = [condition("Initialized", "False", "CompileError", message, 1)];
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        self.experiments().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Changes the labels and annotations of a policy.
    pub async fn policy_metadata(&self, name: &str, metadata: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": metadata}));
        self.policies().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Writes the status of a stopped experiment. `reason` is that of the condition `Previewing`: `Stopping` or `Suspended`.
    pub async fn stopped(&self, name: &str, reason: &str) -> Result<()> {
        let mut status = previewing(120);
        status["previewMetadata"]["state"] = json!("SUSPENDED");
        status["previewMetadata"]["stopTime"] = json!("2026-11-20T09:24:07Z");
        status["conditions"][2] = condition("Previewing", "False", reason, "", 1);
        self.experiment_status(name, status).await.map(drop)
    }

    /// Writes the status of an experiment whose start the operator has undone.
    pub async fn failed_start(&self, name: &str, reason: &str, message: &str) -> Result<()> {
        let mut status = previewing(0);
        status["previewedStartTime"] = Value::Null;
        status["previewMetadata"]["state"] = json!("SUSPENDED");
        status["previewMetadata"]["stopCause"] = json!({"reason": reason, "message": message});
        status["conditions"][2] = condition("Previewing", "False", "Suspended", "", 1);
        self.experiment_status(name, status).await.map(drop)
    }

    /// Writes the status of an experiment that one replica has not loaded yet.
    pub async fn loading(&self, name: &str) -> Result<()> {
        let mut status = previewing(0);
        status["previewedStartTime"] = Value::Null;
        status["replicas"] = json!({"ready": 1, "total": 2, "summary": "1/2"});
        let message = "not every Ready replica has loaded it";
        status["conditions"][2] = condition("Previewing", "False", "Loading", message, 1);
        self.experiment_status(name, status).await.map(drop)
    }

    async fn experiment_status(&self, name: &str, mut status: Value) -> Result<PolicyExperiment> {
        let experiment = self.experiments().get(name).await?;
        let policy = self.policies().get(&experiment.spec.policy_ref.name).await?;
        let live = etag(&policy.uid().unwrap_or_default(), 1);
        status["liveEtag"] = json!(live);
        status["divergence"]["liveEtag"] = json!(live);
        status["divergence"]["etag"] = json!(etag(&experiment.uid().unwrap_or_default(), 1));
        let patch = Patch::Merge(json!({"status": status}));
        Ok(self.experiments().patch_status(name, &PatchParams::default(), &patch).await?)
    }

    /// Waits for a rollback request, and returns the requested generation.
    pub async fn until_rollback_request(&self, name: &str) -> Result<String> {
        until("a rollback request", WAIT_TIMEOUT, async || {
            let policy = self.policies().get(name).await?;
            policy.annotations().get(ROLLBACK_TO).cloned().context("no annotation")
        })
        .await
    }

    /// Waits for a rollback request, removes its annotation as the operator would, and returns the requested generation.
    pub async fn take_rollback_request(&self, name: &str) -> Result<String> {
        let generation = self.until_rollback_request(name).await?;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {ROLLBACK_TO: null}}}));
        self.policies().patch(name, &PatchParams::default(), &patch).await?;
        Ok(generation)
    }
}

/// Runs the program under a name: `proviso` or `kubectl-proviso`.
pub async fn run(name: &str, kubeconfig: &Path, arguments: &[&str]) -> Result<Output> {
    let result = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .arg0(name)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(arguments)
        .env_remove("PROVISO_NAMESPACE")
        .env_remove("PROVISO_SERVER")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ok(Output { code: result.status.code(), out: text(result.stdout), err: text(result.stderr) })
}

pub fn spec(label: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": "params.label in object.metadata.labels"}]}},
        "settings": {"label": label},
        "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
    })
}

pub fn active(generation: i64) -> Value {
    json!({
        "phase": "Active", "liveGeneration": generation, "mode": "Protect",
        "replicas": {"ready": 1, "total": 1, "summary": "1/1"},
        "conditions": [
            condition("Scheduled", "True", "RevisionCreated", "there is a revision of this generation", generation),
            condition("Initialized", "True", "Prepared", "", generation),
            condition("Ready", "True", "Loaded", "every Ready replica has loaded it", generation),
            condition("Live", "True", "Live", "requests are answered by it", generation),
        ],
    })
}

pub fn failed(generation: i64, live: i64) -> Value {
    json!({
        "phase": "Failed", "liveGeneration": live, "mode": "Protect",
        "replicas": {"ready": 0, "total": 1, "summary": "0/1"},
        "conditions": [
            condition("Scheduled", "True", "RevisionCreated", "there is a revision of this generation", generation),
            condition("Initialized", "False", "CompileError", MESSAGE, generation),
            condition("Ready", "False", "NotInitialized", "not every Ready replica has loaded it", generation),
            condition("Live", "False", "NotInitialized", "not yet; generation 1 goes on answering", generation),
        ],
    })
}

pub fn previewing(evaluated: u64) -> Value {
    let start = "2026-11-20T09:14:07Z";
    let denied = if evaluated < 10 { 0 } else { 10 };
    json!({
        "previewMetadata": {
            "state": "ACTIVE", "logPrefix": "PolicyPreviewLog", "startTime": start, "generation": 1, "stopCause": null,
        },
        "previewedStartTime": start,
        "divergence": {
            "evaluated": evaluated, "same": evaluated - denied, "newlyDenied": denied, "newlyAllowed": 0,
            "mutationDiffers": 0, "messageDiffers": 0, "detailsDiffer": 0, "errors": 0, "dropped": 1, "since": start,
        },
        "samples": [{
            "divergence": "NewlyDenied", "kind": "Pod", "namespace": "team", "user": "alice", "count": 10, "name": "web",
            "message": "the label team is missing", "firstSeen": start, "lastSeen": start,
        }],
        "replicas": {"ready": 2, "total": 2, "summary": "2/2"},
        "conditions": [
            condition("Accepted", "True", "Accepted", "", 1),
            condition("Initialized", "True", "Prepared", "", 1),
            condition("Previewing", "True", "Previewing", "", 1),
        ],
    })
}
