//! The control plane with Proviso on it, and the steps that the run executes on it.

mod faults;
mod policies;
mod quiet;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use proviso_e2e::torture::checker::Violation;
use proviso_e2e::torture::history::{Outcome, Time};
use proviso_e2e::torture::plan::{OPERATOR_VERSIONS, POLICIES, Plan, REPLICA_VERSION, REPLICAS, Spec, Step, Version};
use proviso_e2e::{
    Access, ControlPlane, Fault, Proxy, Registry, address_for_endpoints, manifests, program, until, until_with,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::clients::{Clients, create};
use crate::kubelet::{Kubelet, OPERATOR_SERVICE, Programs, Settings};
use crate::objects::{NAMESPACE, Objects, REQUESTS, object};
use crate::observer::observe;
use crate::recorder::{Counts, Recorder};
use crate::specs::{policy_name, policy_spec};
use faults::ActiveFault;

/// The time for which a replaced generation still answers. With a shorter time, a slow machine would look like a fault.
pub const RETIRE_AFTER: Duration = Duration::from_secs(10);
/// The time limit of the start of the cluster, and of each of its policies.
const START_TIMEOUT: Duration = Duration::from_mins(3);
/// The time limit of a step that changes a policy or an experiment. During an outage, the step fails.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of an attempt to write a policy: longer than that of the operator's admission webhook.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(12);
/// The name of the policy server.
const SERVER: &str = "default";
/// The image of the other version of the policy server.
const OTHER_IMAGE: &str = "registry.example.com/policy-server:other";

/// The programs of the version with which this version is mixed.
pub struct OtherPrograms {
    pub operator: PathBuf,
    pub server: PathBuf,
}

pub struct World {
    // Fields are dropped in this order: clients before their servers, so that no client logs errors.
    clients: Option<Clients>,
    observer: JoinHandle<()>,
    kubelet: Kubelet,
    objects: Objects,
    client: Client,
    /// The network between the replicas and the registry.
    registry_link: Proxy,
    registry: Registry,
    plane: ControlPlane,
    recorder: Arc<Recorder>,
    cache: PathBuf,
    faults: Vec<ActiveFault>,
    /// The numbers of requests at the creation of each experiment, by its policy.
    previews: BTreeMap<String, Counts>,
    /// The violations that only the state of the cluster shows.
    pub violations: Vec<Violation>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.observer.abort();
    }
}

impl World {
    /// Starts a control plane, a registry, operators, replicas and policies, and waits until the policies answer.
    pub async fn start(recorder: Arc<Recorder>, other: OtherPrograms) -> Result<Self> {
        let plane = ControlPlane::start("torture").await?;
        plane.ensure_controllers()?;
        let registry = Registry::start("torture-registry", Access::default()).await?;
        let registry_link = Proxy::start(registry.address().parse()?).await?;
        let client = plane.client().await?;
        manifests::apply_crds(&client, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crds"))).await?;
        for name in [NAMESPACE, REQUESTS] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            manifests::apply(&client, &namespace.to_string()).await?;
        }
        let folder = plane.folder().path();
        let cache = folder.join("cache");
        let settings = Settings {
            operator: Programs { this: program::program("operator")?, other: other.operator },
            server: Programs { this: program::program("policy-server")?, other: other.server },
            other_image: OTHER_IMAGE.to_owned(),
            host: address_for_endpoints()?,
            cache: cache.clone(),
            volumes: folder.join("volumes"),
            logs: folder.join("logs"),
            retire_after: RETIRE_AFTER,
        };
        let kubelet = Kubelet::start(client.clone(), plane.links(), settings, Arc::clone(&recorder));
        let objects = Objects::new(&client);
        let observer = tokio::spawn(observe(objects.clone(), Arc::clone(&recorder)));
        let mut world = Self {
            clients: None,
            observer,
            kubelet,
            objects,
            client,
            registry_link,
            registry,
            plane,
            recorder,
            cache,
            faults: Vec::new(),
            previews: BTreeMap::new(),
            violations: Vec::new(),
        };
        world.start_servers().await?;
        world.start_policies().await?;
        Ok(world)
    }

    /// Starts the operators and the replicas, and waits until all replicas are Ready.
    async fn start_servers(&self) -> Result<()> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": OPERATOR_SERVICE, "namespace": NAMESPACE},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]},
        });
        manifests::apply(&self.client, &service.to_string()).await?;
        for (number, version) in (0..).zip(OPERATOR_VERSIONS) {
            self.kubelet.start_operator(number, version).await?;
        }
        let server = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyServer", "metadata": {"name": SERVER},
            "spec": {
                "replicas": REPLICAS,
                "image": image_of(REPLICA_VERSION),
                "cache": {"existingClaim": "cache"},
                "sources": {"insecure": [self.registry_link.address().to_string()]},
                // API servers learn within a second that a replica ends: see the interval of the kubelet.
                "env": [{"name": "PROVISO_SHUTDOWN_DELAY", "value": "5s"}],
            },
        });
        manifests::apply(&self.client, &server.to_string()).await?;
        until("the first replicas", START_TIMEOUT, async || {
            let (ready, others) = self.kubelet.replicas();
            ensure!(ready.len() as u64 == REPLICAS && others.is_empty(), "{} are Ready, not {others:?}", ready.len());
            Ok(())
        })
        .await
    }

    /// Creates the policies, waits until they are live, and starts the clients.
    async fn start_policies(&mut self) -> Result<()> {
        for policy in 0..POLICIES {
            let (name, spec) = (policy_name(policy), Spec::first(policy));
            let created = object(json!({
                "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
                "spec": policy_spec(&name, spec, &self.registry_address()),
            }))?;
            // The operator may have registered its admission webhook a moment before its Service can be reached.
            until_with("the creation of a policy", START_TIMEOUT, ATTEMPT_TIMEOUT, async || {
                match self.objects.policies.create(&PostParams::default(), &created).await {
                    Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                    result => Ok(result.map(drop)?),
                }
            })
            .await?;
            // The API server uses the webhook a moment after the first generation is live.
            until("the first denial", START_TIMEOUT, async || {
                let answer = create(&name, &self.objects.requests, true).await;
                ensure!(answer == Outcome::Denied(spec.marker()), "{answer}");
                Ok(())
            })
            .await?;
        }
        self.clients = Some(Clients::start(&self.objects.requests, &self.recorder));
        Ok(())
    }

    /// Returns the address of the registry for replicas.
    fn registry_address(&self) -> String {
        self.registry_link.address().to_string()
    }

    /// Executes the steps of a plan for this time, and then ends all faults.
    pub async fn run(&mut self, plan: Plan, steps: usize, time: Duration) -> Result<()> {
        let end = self.recorder.now() + time;
        for planned in plan.take(steps) {
            self.wait_until(self.recorder.now() + planned.pause).await?;
            if self.recorder.now() >= end {
                break;
            }
            self.recorder.note(planned);
            if let Err(error) = Box::pin(self.execute(planned.step)).await {
                self.recorder.note(format!("step {} failed: {error:#}", planned.number));
            }
        }
        self.end_faults(Time::MAX).await
    }

    /// Waits until this time of the run, and ends the faults that end before it.
    async fn wait_until(&mut self, time: Time) -> Result<()> {
        loop {
            let now = self.recorder.now();
            self.end_faults(now).await?;
            if now >= time {
                return Ok(());
            }
            let next = self.faults.iter().map(|fault| fault.until).min().unwrap_or(time).min(time);
            tokio::time::sleep(next.saturating_sub(now)).await;
        }
    }

    async fn execute(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Edit { .. }
            | Step::RollBack { .. }
            | Step::StartExperiment { .. }
            | Step::CommitExperiment { .. }
            | Step::DeleteExperiment { .. } => {
                let executed = tokio::time::timeout(STEP_TIMEOUT, Box::pin(self.change_policy(step)));
                executed.await.context("the API server does not answer in time").flatten()
            }
            Step::Scale { replicas } => self.change_server(json!({"replicas": replicas})).await,
            Step::ChangeServerVersion => {
                let server = self.objects.servers.get(SERVER).await?;
                let is_other = server.data["spec"]["image"] == OTHER_IMAGE;
                let version = if is_other { Version::Other } else { Version::This };
                let next = version.next();
                self.recorder.note(format!("the replicas change to {next}"));
                self.change_server(json!({"image": image_of(next)})).await
            }
            _ => self.inject(step).await,
        }
    }

    /// Changes fields of the policy server's spec.
    async fn change_server(&self, spec: Value) -> Result<()> {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(json!({"spec": spec})));
        let change = self.objects.servers.patch(SERVER, &parameters, &patch);
        tokio::time::timeout(STEP_TIMEOUT, change).await??;
        Ok(())
    }

    /// Sets the fault of the network between the replicas and the registry.
    fn set_registry_fault(&self, fault: Fault) {
        self.registry_link.set(fault);
    }
}

/// Returns the image of the replicas in a version; `None` for the image that the operator sets.
const fn image_of(version: Version) -> Option<&'static str> {
    match version {
        Version::This => None,
        Version::Other => Some(OTHER_IMAGE),
    }
}
