//! The kubelet of the run. The control plane has no nodes: the pods of the policy server run as processes of this machine.
//!
//! Starts a process for each pod, ends it when the pod is deleted, and starts it again when it ends. Reports the readiness of the
//! process in the status of its pod, and in a slice of the Service that API servers call. Runs the operators too, without pods.

mod instance;
mod pods;
mod start;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use proviso_crds::names::SERVER_LABEL;
use proviso_e2e::torture::history::OutageKind;
use proviso_e2e::torture::plan::Version;
use proviso_e2e::{Fault, Links};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};

use crate::objects::{NAMESPACE, Objects};
use crate::recorder::{Recorder, lock};
use instance::{Instance, Role};
use pods::Mount;

/// The interval of all work.
const TICK: Duration = Duration::from_millis(250);
/// The time limit of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit of a request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of the start of a replica, which reads its volumes.
const START_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of ticks between two updates of the volumes.
const TICKS_BETWEEN_MOUNTS: u32 = 20;
/// The finalizer that keeps the object of a deleted pod until its process has ended. The control plane removes the object of a pod
/// without a node at once otherwise.
const FINALIZER: &str = "torture.proviso.dev/process";
/// The Service in front of the operators.
pub const OPERATOR_SERVICE: &str = "proviso-operator";
/// The Service in front of the replicas.
const REPLICA_SERVICE: &str = "policy-server-default";

/// A program in both versions.
pub struct Programs {
    pub this: PathBuf,
    pub other: PathBuf,
}

/// The programs and paths that the kubelet uses.
pub struct Settings {
    pub operator: Programs,
    pub server: Programs,
    /// The image of the policy server in its other version.
    pub other_image: String,
    /// The address of this machine for API servers.
    pub host: IpAddr,
    /// The folder that the replicas share as their cache.
    pub cache: PathBuf,
    /// The folder with the volumes of pods.
    pub volumes: PathBuf,
    /// The folder with the logs of processes.
    pub logs: PathBuf,
    pub retire_after: Duration,
}

/// The running kubelet. Its processes end when this value is dropped.
pub struct Kubelet {
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    client: Client,
    objects: Objects,
    links: Links,
    settings: Settings,
    recorder: Arc<Recorder>,
    /// The processes by their names. The name of a replica is the name of its pod.
    instances: Mutex<BTreeMap<String, Instance>>,
    /// The number of the outage while no replica is Ready.
    outage: Mutex<Option<usize>>,
}

impl Kubelet {
    pub fn start(client: Client, links: Links, settings: Settings, recorder: Arc<Recorder>) -> Self {
        let objects = Objects::new(&client);
        let (instances, outage) = (Mutex::default(), Mutex::default());
        let state = Arc::new(State { client, objects, links, settings, recorder, instances, outage });
        let task = tokio::spawn(Arc::clone(&state).run());
        Self { state, task }
    }

    /// Starts an operator in this version. It is started again when it ends.
    pub async fn start_operator(&self, number: u64, version: Version) -> Result<()> {
        self.state.start_operator(number, version).await
    }

    /// Returns the names of the operators, or of the replicas whose pods are not deleted, in order.
    pub fn names(&self, replicas: bool) -> Vec<String> {
        let instances = lock(&self.state.instances);
        let found = instances.iter().filter(|(_, it)| it.is_replica() == replicas && !it.is_ending());
        found.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the Ready replicas with the clients of their admin ports, and the names of the other replicas.
    pub fn replicas(&self) -> (Vec<(String, Client)>, Vec<String>) {
        let instances = lock(&self.state.instances);
        let replicas = instances.iter().filter(|(_, it)| it.is_replica());
        let (ready, others): (Vec<_>, Vec<_>) = replicas.partition(|(_, it)| it.is_serving() && it.is_published());
        let ready = ready.into_iter().map(|(name, it)| (name.clone(), it.probe())).collect();
        (ready, others.into_iter().map(|(name, _)| name.clone()).collect())
    }

    /// Changes a process, if it exists.
    fn with(&self, name: &str, change: impl FnOnce(&mut Instance, &Recorder)) {
        if let Some(instance) = lock(&self.state.instances).get_mut(name) {
            change(instance, &self.state.recorder);
        }
    }

    pub fn kill(&self, name: &str) {
        self.with(name, Instance::kill);
    }

    /// Sends SIGTERM to a process, which is then started again.
    pub fn terminate(&self, name: &str) {
        // If the process has just ended, there is nothing to do.
        self.with(name, |instance, _| drop(instance.terminate()));
    }

    pub fn change_version(&self, name: &str) {
        self.with(name, Instance::change_version);
    }

    pub fn freeze(&self, name: &str) {
        // If the process has just ended, there is nothing to freeze.
        self.with(name, |instance, recorder| drop(instance.freeze(recorder)));
    }

    pub fn thaw(&self, name: &str) {
        self.with(name, Instance::thaw);
    }

    pub fn set_fault(&self, name: &str, fault: Fault) {
        self.with(name, |instance, _| instance.set_fault(fault));
    }

    pub fn shift_clock(&self, name: &str, seconds: i32) {
        self.with(name, |instance, recorder| instance.shift_clock(seconds, recorder));
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        lock(&self.state.instances).clear();
    }
}

impl State {
    async fn run(self: Arc<Self>) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ticks = 0_u32;
        loop {
            interval.tick().await;
            // While the API server does not work, the processes go on.
            if let Some(pods) = self.pods().await {
                self.follow(&pods).await;
            }
            self.restart_ended();
            self.probe().await;
            self.report().await;
            self.publish().await;
            ticks = ticks.wrapping_add(1);
            if ticks.is_multiple_of(TICKS_BETWEEN_MOUNTS) {
                self.update_mounts().await;
            }
        }
    }

    /// Returns the pods of the policy server; `None` if the API server does not answer.
    async fn pods(&self) -> Option<Vec<Pod>> {
        let ours = ListParams::default().labels(&format!("{SERVER_LABEL}=default"));
        let list = tokio::time::timeout(REQUEST_TIMEOUT, self.objects.pods.list(&ours)).await;
        Some(list.ok()?.ok()?.items)
    }

    /// Starts the processes of new pods, and ends the processes of deleted pods.
    async fn follow(&self, pods: &[Pod]) {
        for pod in pods {
            let (Some(name), Some(uid)) = (&pod.metadata.name, &pod.metadata.uid) else { continue };
            let is_deleted = pod.metadata.deletion_timestamp.is_some();
            match (self.uid(name), is_deleted) {
                (None, false) => {
                    let starting = tokio::time::timeout(START_TIMEOUT, self.start_replica(pod, name, uid));
                    if let Err(error) = starting.await.context("the API server does not answer").flatten() {
                        self.recorder.note(format!("{name} does not start yet: {error:#}"));
                    }
                }
                (None, true) => self.remove_finalizer(name).await,
                (Some(known), _) if known != *uid || is_deleted => self.end(name),
                (Some(_), _) => {}
            }
        }
        let exists = |name: &String| pods.iter().any(|pod| pod.metadata.name.as_ref() == Some(name));
        let mut instances = lock(&self.instances);
        let removed = instances.iter_mut().filter(|(name, it)| it.is_replica() && !exists(name));
        for (_, instance) in removed {
            instance.end();
        }
    }

    /// Returns the uid of the pod whose process runs with this name.
    fn uid(&self, name: &str) -> Option<String> {
        match lock(&self.instances).get(name)?.role() {
            Role::Replica { uid } => Some(uid.clone()),
            Role::Operator => None,
        }
    }

    fn end(&self, name: &str) {
        if let Some(instance) = lock(&self.instances).get_mut(name) {
            instance.end();
        }
    }

    async fn remove_finalizer(&self, name: &str) {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        // If the API server does not answer, the next tick tries again.
        let _ =
            tokio::time::timeout(REQUEST_TIMEOUT, self.objects.pods.patch(name, &PatchParams::default(), &patch)).await;
    }

    /// Starts the processes again that have ended, except those of deleted pods.
    fn restart_ended(&self) {
        lock(&self.instances).retain(|name, instance| match instance.restart_if_ended(&self.recorder) {
            Ok(is_over) => !is_over,
            Err(error) => {
                self.recorder.note(format!("{name} cannot be started again: {error:#}"));
                true
            }
        });
    }

    /// Asks each process for its readiness.
    async fn probe(&self) {
        let mut probes = JoinSet::new();
        for (name, instance) in &*lock(&self.instances) {
            let (name, client) = (name.clone(), instance.probe());
            probes.spawn(async move {
                let is_ready = ask(&client, "/readyz").await.is_ok();
                (name, is_ready)
            });
        }
        while let Some(Ok((name, is_ready))) = probes.join_next().await {
            if let Some(instance) = lock(&self.instances).get_mut(&name) {
                instance.count_probe(is_ready);
            }
        }
    }

    /// Writes the addresses of the processes that are Ready, and removes the addresses of the others.
    async fn publish(&self) {
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), NAMESPACE);
        let mut wanted = Vec::new();
        for (name, instance) in &*lock(&self.instances) {
            let service = if instance.is_replica() { REPLICA_SERVICE } else { OPERATOR_SERVICE };
            let slice = instance.slice_to_write(self.settings.host, service);
            wanted.extend(slice.map(|slice| (name.clone(), slice, instance.should_be_published())));
        }
        for (name, (slice_name, slice), is_published) in wanted {
            let (parameters, patch) = (PatchParams::apply("torture").force(), Patch::Apply(&slice));
            let written = tokio::time::timeout(REQUEST_TIMEOUT, slices.patch(&slice_name, &parameters, &patch)).await;
            if let (Ok(Ok(_)), Some(instance)) = (written, lock(&self.instances).get_mut(&name)) {
                instance.set_published(is_published, &self.recorder);
            }
        }
        let can_serve = lock(&self.instances).values().any(|it| it.is_replica() && it.is_published());
        let mut outage = lock(&self.outage);
        if can_serve {
            if let Some(number) = outage.take() {
                self.recorder.end_outage(number);
            }
        } else if outage.is_none() {
            *outage = Some(self.recorder.begin_outage(OutageKind::NoReplica, "no replica is Ready"));
        }
    }

    /// Writes the readiness of the replicas to the status of their pods.
    async fn report(&self) {
        let mut wanted = Vec::new();
        for (name, instance) in &*lock(&self.instances) {
            wanted.extend(instance.readiness_to_report().map(|(uid, is_ready)| (name.clone(), uid, is_ready)));
        }
        for (name, uid, is_ready) in wanted {
            let (ready, since) = (if is_ready { "True" } else { "False" }, Time(Timestamp::now()));
            let condition = json!({"type": "Ready", "status": ready, "lastTransitionTime": since});
            let status = json!({"metadata": {"uid": uid}, "status": {"phase": "Running", "conditions": [condition]}});
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(status));
            let write = self.objects.pods.patch_status(&name, &parameters, &patch);
            let written = tokio::time::timeout(REQUEST_TIMEOUT, write).await;
            if let (Ok(Ok(_)), Some(instance)) = (written, lock(&self.instances).get_mut(&name)) {
                instance.set_reported(is_ready);
            }
        }
    }

    /// Writes the current content of the volumes of all pods.
    async fn update_mounts(&self) {
        let mounts: Vec<Mount> = lock(&self.instances).values().flat_map(|it| it.mounts().to_vec()).collect();
        for mount in mounts {
            // If the API server does not answer, the volume keeps its content.
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, mount.write(&self.client)).await;
        }
    }
}

/// Returns the answer of the admin port of a process.
pub async fn ask(client: &Client, path: &str) -> Result<String> {
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(tokio::time::timeout(PROBE_TIMEOUT, client.request_text(request)).await??)
}
