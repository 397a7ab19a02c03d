//! A test environment of a real control plane with the CRDs, and replicas of the policy server `default` in it.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use proviso_crds::PolicyRevision;
use proviso_e2e::{ControlPlane, Kubectl, Link, manifests, until};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{Answer, Folder, PATIENT, Server, WAIT_TIMEOUT, pod, policy};

pub const POD: &str = "policy-server-default-0";
pub const LEASE: &str = "policy-server-default";
/// The folder of the CRDs.
const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds");

/// A namespace of a control plane with the CRDs, and clients of its objects.
pub struct TestEnv {
    pub plane: Plane,
    /// The namespace of the revisions and the Lease.
    pub namespace: String,
    pub kubectl: Kubectl,
    pub revisions: Api<DynamicObject>,
    pub leases: Api<Lease>,
    pub pods: Api<Pod>,
}

/// A control plane of one test, or of all tests of this program.
pub enum Plane {
    Own(Box<ControlPlane>),
    Shared(&'static ControlPlane),
}

impl Plane {
    /// Returns the control plane of this test, to stop its processes.
    ///
    /// # Panics
    /// Panics if the control plane is shared: start the environment with [`TestEnv::start_dedicated`].
    pub fn own(&mut self) -> &mut ControlPlane {
        match self {
            Self::Own(plane) => plane,
            Self::Shared(_) => {
                panic!("the tests of this program share the control plane: use TestEnv::start_dedicated")
            }
        }
    }
}

impl Deref for Plane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match self {
            Self::Own(plane) => plane,
            Self::Shared(plane) => plane,
        }
    }
}

impl TestEnv {
    /// Returns an environment in a new namespace of the control plane that the tests of this program share.
    pub async fn start(test: &str) -> Result<Self> {
        static KINDS: OnceCell<()> = OnceCell::const_new();
        let plane = ControlPlane::shared("policy-server").await?;
        let client = plane.client().await?;
        KINDS.get_or_try_init(|| manifests::apply_crds(&client, Path::new(CRDS))).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": test}});
        manifests::apply(&client, &namespace.to_string()).await?;
        Self::of(Plane::Shared(plane), test, client).await
    }

    /// Returns an environment in the namespace `default` of a separate control plane, for a test that injects faults into the
    /// control plane or needs an empty cluster.
    pub async fn start_dedicated(test: &str) -> Result<Self> {
        let plane = Box::pin(ControlPlane::start(test)).await?;
        let client = plane.client().await?;
        manifests::apply_crds(&client, Path::new(CRDS)).await?;
        Self::of(Plane::Own(Box::new(plane)), "default", client).await
    }

    async fn of(plane: Plane, namespace: &str, client: Client) -> Result<Self> {
        let kubectl = Kubectl::new(plane.kubeconfig())?;
        let resource = ApiResource::erase::<PolicyRevision>(&());
        let revisions = Api::namespaced_with(client.clone(), namespace, &resource);
        let leases = Api::namespaced(client.clone(), namespace);
        let pods = Api::namespaced(client, namespace);
        let env = Self { plane, namespace: namespace.to_owned(), kubectl, revisions, leases, pods };
        env.create_lease().await?;
        Ok(env)
    }

    /// Creates the Lease that replicas claim, as the operator does.
    pub async fn create_lease(&self) -> Result<()> {
        let lease = json!({"metadata": {"name": LEASE}, "spec": {}});
        self.leases.create(&PostParams::default(), &serde_json::from_value(lease)?).await?;
        Ok(())
    }

    /// Creates a Ready pod of the policy server, and returns its uid. No kubelet runs the pod: the test starts its replica, and sets
    /// its readiness.
    pub async fn ready_pod(&self, name: &str) -> Result<String> {
        self.plane.ensure_controllers()?;
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"proviso.dev/policy-server": "default"}},
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{"name": "policy-server", "image": "policy-server"}],
            },
        }))?;
        // The controller manager creates the service account of a new namespace. Without it, the API server refuses pods.
        let created = until(&format!("the pod {name}"), WAIT_TIMEOUT, async || {
            self.pods.create(&PostParams::default(), &pod).await.context("creating the pod")
        })
        .await?;
        self.set_pod_ready(name, true).await?;
        created.metadata.uid.context("its uid")
    }

    /// Sets the condition Ready of a pod, as a kubelet does.
    pub async fn set_pod_ready(&self, name: &str, is_ready: bool) -> Result<()> {
        let condition = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        self.pods.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Replaces fields of the status of a revision by a merge patch.
    pub async fn patch_status(&self, name: &str, status: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.revisions.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Starts the replica of the pod [`POD`] with this uid, and waits until it is ready.
    pub async fn replica(&self, pod_uid: &str) -> Result<Server> {
        self.replica_of(POD, pod_uid).await
    }

    /// Starts the replica of a pod and waits until it is ready.
    pub async fn replica_of(&self, pod: &str, pod_uid: &str) -> Result<Server> {
        Self::run(self.command(pod, pod_uid)).await
    }

    /// Returns the command of the replica of a pod.
    pub fn command(&self, pod: &str, pod_uid: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_policy-server"));
        command
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(PATIENT)
            .args([
                "--policy-server",
                "default",
                "--namespace",
                &self.namespace,
                "--pod-name",
                pod,
                "--pod-uid",
                pod_uid,
            ])
            .env("KUBECONFIG", self.plane.kubeconfig());
        command
    }

    /// Runs the command of a replica and waits until the replica is ready.
    pub async fn run(command: Command) -> Result<Server> {
        let server = Server::run(command, Folder::new()).await;
        server.until_ready().await?;
        Ok(server)
    }

    /// Starts a network proxy between a replica and the API server.
    pub async fn link(&self, replica: &str) -> Result<Link> {
        self.plane.links().create(&format!("{}-{replica}", self.namespace)).await
    }

    /// Removes the holder of the Lease, so that another replica leads at once. The renewal time has no effect: replicas measure the
    /// time since they observed it.
    pub async fn expire_lease(&self) -> Result<()> {
        let released = json!({"spec": {"holderIdentity": null, "renewTime": null}});
        self.leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(&released)).await?;
        Ok(())
    }

    pub async fn create(&self, revision: &Value) -> Result<()> {
        let revision = serde_json::from_value(revision.clone())?;
        self.revisions.create(&PostParams::default(), &revision).await?;
        Ok(())
    }

    pub async fn enable(&self, name: &str, enabled: bool) -> Result<()> {
        let change = json!({"spec": {"enabled": enabled}});
        self.revisions.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await?;
        Ok(())
    }

    /// Sets a condition of a revision, as the operator and the leader do.
    pub async fn set_condition(&self, name: &str, type_: &str, status: &str) -> Result<()> {
        let patch = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision",
            "status": {"conditions": [condition_of(type_, status)]},
        });
        self.revisions.patch_status(name, &PatchParams::apply("test").force(), &Patch::Apply(patch)).await?;
        Ok(())
    }

    /// Waits until the replica reports this about a revision, and returns the complete status.
    pub async fn until_reported(&self, name: &str, pod_uid: &str, ready: &str, reason: &str) -> Result<Value> {
        until(&format!("{name} reported {ready}, {reason}"), WAIT_TIMEOUT, async || {
            let status = self.revisions.get(name).await?.data["status"].clone();
            let items = status["replicas"].as_array().into_iter().flatten();
            let item = items.into_iter().find(|item| item["podUID"] == pod_uid);
            let item = item.with_context(|| format!("no item of {pod_uid}: {status:#}"))?;
            ensure!(item["ready"] == ready && item["reason"] == reason, "{status:#}");
            Ok(status)
        })
        .await
    }

    /// Returns the pod that holds the Lease.
    pub async fn leader(&self) -> Result<String> {
        until("a leader", WAIT_TIMEOUT, async || {
            let spec = self.leases.get(LEASE).await?.spec.context("no spec")?;
            let holder = spec.holder_identity.context("the Lease has no holder")?;
            Ok(holder.split_once('_').context("its identity")?.0.to_owned())
        })
        .await
    }

    /// Waits until the leader has prepared a revision.
    pub async fn until_initialized(&self, name: &str) -> Result<()> {
        until(&format!("{name} to be initialized"), WAIT_TIMEOUT, async || {
            let status = self.revisions.get(name).await?.data["status"].clone();
            ensure!(condition(&status, "Initialized")?["status"] == "True", "{status:#}");
            Ok(())
        })
        .await
    }
}

/// Returns a revision of a `ClusterPolicy` of the policy server `default`, as the operator creates it.
pub fn revision(name: &str, generation: u32, spec: &Value) -> Value {
    let policy: Value = serde_json::from_str(&policy(name, spec)).unwrap();
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision",
        "metadata": {
            "name": format!("cluster.{name}-{generation}"),
            "labels": {"proviso.dev/policy-server": "default"},
        },
        "spec": {
            "policyServer": "default",
            "policyRef": {"kind": "ClusterPolicy", "name": name, "uid": format!("uid-{name}"), "generation": generation},
            "enabled": true,
            "data": policy["spec"],
        },
    })
}

/// Returns the same revision for a Policy in the namespace `default`.
pub fn namespaced(mut revision: Value) -> Value {
    let name = revision["metadata"]["name"].as_str().unwrap().replace("cluster.", "ns.default.");
    revision["metadata"]["name"] = name.into();
    revision["spec"]["policyRef"]["kind"] = "Policy".into();
    revision["spec"]["policyRef"]["namespace"] = "default".into();
    revision
}

pub async fn ask(server: &Server, path: &str) -> Answer {
    server.post(path, pod("u", "x").to_string()).await
}

/// Waits until this path answers with this message.
pub async fn until_answered(server: &Server, path: &str, message: &str) -> Result<()> {
    until(&format!("{path}: {message}"), WAIT_TIMEOUT, async || {
        let answer = ask(server, path).await;
        ensure!(answer.status == StatusCode::OK && answer.message() == message, "{}", answer.text);
        Ok(())
    })
    .await
}

/// Waits until the replica is not ready for a reason with this text.
pub async fn until_not_ready(server: &Server, text: &str) -> Result<()> {
    until(&format!("not ready: {text}"), WAIT_TIMEOUT, async || {
        let answer = server.get("/readyz").await;
        ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE, "{}: {}", answer.status, answer.text);
        ensure!(answer.text.contains(text), "{}", answer.text);
        Ok(())
    })
    .await
}

/// Waits until this path answers 503 with `Retry-After: 1`.
pub async fn until_unloaded(server: &Server, path: &str) -> Result<()> {
    until(&format!("{path} to be unloaded"), WAIT_TIMEOUT, async || {
        let answer = ask(server, path).await;
        ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE, "{}: {}", answer.status, answer.text);
        ensure!(answer.headers["retry-after"] == "1");
        Ok(())
    })
    .await
}

/// Returns a condition with this status, as the operator and the leader write it.
pub fn condition_of(type_: &str, status: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": "Test", "message": "", "lastTransitionTime": "2026-11-20T09:14:07Z",
    })
}

/// Returns the item of a replica in the status of a revision.
pub fn item(pod: &str, uid: &str, ready: &str) -> Value {
    json!({
        "name": pod, "podUID": uid, "serverVersion": "0", "ready": ready, "reason": "Test",
        "lastTransitionTime": "2026-11-20T09:14:07Z",
    })
}

pub fn condition<'a>(status: &'a Value, kind: &str) -> Result<&'a Value> {
    let conditions = status["conditions"].as_array().context("no conditions")?;
    conditions.iter().find(|condition| condition["type"] == kind).with_context(|| format!("{status:#}"))
}
