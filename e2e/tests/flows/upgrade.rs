//! The flow of an upgrade from the previous version of Proviso as in `docs/how-to/install.md`, a downgrade, and another upgrade.
//! Requests with known answers run all the while. The flow has a cluster of its own, which begins with the previous version.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::ListParams;
use proviso_crds::{
    ConditionStatus, ExperimentStatus, PolicyPhase, PolicyRevisionSpec, PreviewState, RevisionRole, reasons,
};
use proviso_e2e::torture::module;
use proviso_e2e::{Previous, Registry, program, until};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use crate::experiments::experiments;
use crate::installation::{CRDS, PROVISO, TAG, repository};
use crate::load::{Expected, Load, deny_with_long_timeout, with_long_timeout};
use crate::test_cluster::{OPERATORS, TestCluster, WAIT_TIMEOUT, is_ready, policy_spec};

/// The tag of the images of the previous version.
const PREVIOUS_TAG: &str = "previous";
/// The number of replicas. Each one more takes about 20 s in each of the three rolling updates.
const REPLICAS: usize = 2;
/// The time limit of a rolling update.
const UPDATE_TIMEOUT: Duration = Duration::from_mins(5);
/// The interval between two looks for faults.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The number of requests per second of each load.
const RATE: u32 = 8;
/// The label of the requests that CEL and Rego allow.
const EXEMPT: &str = "exempt";
/// The policy that is never edited, so that its experiment counts from the begin to the end of the flow.
const PREVIEWED: &str = "previewed";
const EXPERIMENT: &str = "previewed-next";

pub async fn upgrade_and_downgrade_lose_no_request() -> Result<()> {
    let previous = Previous::find()?;
    let cluster = TestCluster::without_proviso("flows-upgrade").await?;
    for (name, path) in [("operator", &previous.operator), ("policy-server", &previous.policy_server)] {
        cluster.load(name, path, &[PREVIOUS_TAG]).await?;
        cluster.load(name, &program::program(name)?, &[TAG]).await?;
    }
    cluster.install(&previous.source, CRDS, &json!({})).await?;
    cluster.install(&previous.source, PROVISO, &values(&cluster, PREVIOUS_TAG)).await?;
    until_version(&cluster, PREVIOUS_TAG).await?;

    let mut state = State::create(&cluster).await?;
    tokio::select! {
        result = Box::pin(change_versions(&cluster, &mut state)) => result?,
        fault = until_fault(&cluster) => return Err(fault),
    }
    state.finish().await
}

/// Upgrades the kinds and then the programs, downgrades the programs, and upgrades them again.
async fn change_versions(cluster: &TestCluster, state: &mut State) -> Result<()> {
    let pods = cluster.restarts().await?;
    cluster.install(&repository(), CRDS, &json!({})).await?;
    state.check("the upgrade of the kinds", PREVIOUS_TAG, cluster).await?;
    ensure!(cluster.restarts().await? == pods, "the upgrade of the kinds has restarted a replica");

    cluster.install(&repository(), PROVISO, &values(cluster, TAG)).await?;
    state.check("the upgrade of the programs", TAG, cluster).await?;
    cluster.helm(&["rollback", PROVISO]).await?;
    state.check("the downgrade of the programs", PREVIOUS_TAG, cluster).await?;
    cluster.install(&repository(), PROVISO, &values(cluster, TAG)).await?;
    state.check("the second upgrade of the programs", TAG, cluster).await
}

/// Returns the values of the chart `proviso` with this version of the images.
fn values(cluster: &TestCluster, tag: &str) -> Value {
    let mut values = cluster.values();
    values["image"]["tag"] = tag.into();
    values["defaultPolicyServer"]["spec"]["replicas"] = REPLICAS.into();
    values
}

/// Waits until all operators and replicas run this version, and answer.
async fn until_version(cluster: &TestCluster, tag: &str) -> Result<()> {
    until(&format!("the version {tag} of all programs"), UPDATE_TIMEOUT, async || {
        let operators = cluster.pods().list(&ListParams::default().labels(OPERATORS)).await?.items;
        let replicas = cluster.replicas_of("default").await?;
        ensure!(!operators.is_empty() && replicas.len() == REPLICAS, "{} replicas", replicas.len());
        for pod in operators.iter().chain(&replicas) {
            let image = image(pod);
            ensure!(is_ready(pod) && image.ends_with(&format!(":{tag}")), "{}: {image}", pod.name_any());
        }
        Ok(())
    })
    .await?;
    cluster.until_operators_answer().await
}

fn image(pod: &Pod) -> &str {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|container| container.image.as_deref()).unwrap_or_default()
}

/// Looks at the policies and their revisions until a look finds a fault. Returns the fault.
async fn until_fault(cluster: &TestCluster) -> Error {
    let mut interval = tokio::time::interval(LOOK_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        // A look that fails is no observation.
        if let Ok(Some(fault)) = fault(cluster).await {
            return anyhow!(fault);
        }
    }
}

/// Returns the fault of a policy without a live generation, or of a replica that has not loaded a revision.
async fn fault(cluster: &TestCluster) -> Result<Option<String>> {
    for policy in cluster.policies().list(&ListParams::default()).await? {
        let status = policy.status.clone().unwrap_or_default();
        let is_right = matches!(status.phase, Some(PolicyPhase::Active | PolicyPhase::Updating));
        if !is_right || status.live_generation.is_none() {
            return Ok(Some(format!("the policy {}: {status:#?}", policy.name_any())));
        }
    }
    for revision in cluster.revisions().list(&ListParams::default()).await? {
        let mut items = revision.status.iter().flat_map(|status| &status.replicas);
        if let Some(item) = items.find(|item| item.ready == ConditionStatus::False) {
            return Ok(Some(format!("the revision {}: {item:#?}", revision.name_any())));
        }
    }
    Ok(None)
}

/// The policies with their loads, and the facts that a change of the installation must keep.
struct State {
    /// The policies that are edited after each change.
    edited: Vec<LivePolicy>,
    /// The policy of the experiment.
    previewed: LivePolicy,
    /// The number of previewed requests.
    count: u64,
    /// The time at which the preview was started.
    start_time: Option<Time>,
    /// The uids of the revisions by their names.
    revisions: BTreeMap<String, Option<String>>,
}

impl State {
    /// Creates the policies and the experiment, and waits until they are live.
    async fn create(cluster: &TestCluster) -> Result<Self> {
        let mut edited = Vec::new();
        for (name, engine) in [("cel", Engine::Cel), ("rego", Engine::Rego), ("wasm", Engine::Wasm)] {
            edited.push(LivePolicy::create(name, engine, cluster).await?);
        }
        let previewed = LivePolicy::create(PREVIEWED, Engine::Cel, cluster).await?;
        let experiment = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": EXPERIMENT},
            "spec": {
                "policyRef": {"name": PREVIEWED},
                "policy": deny_with_long_timeout(PREVIEWED, "next"),
                "autoStart": true,
            },
        });
        cluster.apply(&experiment).await?;
        let mut state = Self { edited, previewed, count: 0, start_time: None, revisions: BTreeMap::new() };
        state.preview(cluster).await?;
        state.revisions = revisions(cluster).await?;
        Ok(state)
    }

    /// Waits until a change of the installation is complete, and checks that it has changed no policy and no experiment. Then edits
    /// the policies, and previews a request.
    async fn check(&mut self, change: &str, tag: &str, cluster: &TestCluster) -> Result<()> {
        let begin = Instant::now();
        until_version(cluster, tag).await?;
        let found = revisions(cluster).await?;
        ensure!(found == self.revisions, "{change} has changed revisions from {:#?} to {found:#?}", self.revisions);
        for policy in self.edited.iter().chain([&self.previewed]) {
            policy.until_loaded(cluster).await.with_context(|| format!("after {change}"))?;
        }
        for policy in &mut self.edited {
            policy.write(cluster).await?;
        }
        for policy in &mut self.edited {
            policy.until_live(cluster).await.with_context(|| format!("an edit after {change}"))?;
        }
        self.preview(cluster).await.with_context(|| format!("the preview after {change}"))?;
        self.revisions = revisions(cluster).await?;
        eprintln!("{change}, and an edit of each policy after it: {:.1} s", begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// Checks that all replicas preview the experiment, and that its counts go on. Then previews one request.
    async fn preview(&mut self, cluster: &TestCluster) -> Result<()> {
        let all = format!("{REPLICAS}/{REPLICAS}");
        let start_time = until("the preview on all replicas", WAIT_TIMEOUT, async || {
            let status = experiment_status(cluster).await?;
            let is_previewing = status.conditions.iter().any(|it| it.type_ == "Previewing" && it.status == "True");
            let is_everywhere = status.replicas.as_ref().is_some_and(|replicas| replicas.summary == all);
            ensure!(is_previewing && is_everywhere, "{status:#?}");
            ensure!(counted(&status) == self.count, "{} requests were previewed: {status:#?}", self.count);
            let preview = status.preview_metadata.context("no preview")?;
            ensure!(preview.state == PreviewState::Active, "{preview:?}");
            Ok(preview.start_time)
        })
        .await?;
        let first = self.start_time.get_or_insert_with(|| start_time.clone());
        ensure!(*first == start_time, "the preview was started again at {start_time:?}");

        let answer = cluster.requester(PREVIEWED).create().await?;
        ensure!(answer == Some(self.previewed.generation.to_string()), "{answer:?}");
        self.count += 1;
        until("the count of the request", WAIT_TIMEOUT, async || {
            let status = experiment_status(cluster).await?;
            ensure!(counted(&status) == self.count, "{} requests were previewed: {status:#?}", self.count);
            Ok(())
        })
        .await
    }

    /// Ends the loads, and checks all answers.
    async fn finish(self) -> Result<()> {
        for policy in self.edited.into_iter().chain([self.previewed]) {
            for load in policy.loads {
                load.finish(&policy.live_times).await.with_context(|| format!("the requests to {}", policy.name))?;
            }
        }
        Ok(())
    }
}

async fn experiment_status(cluster: &TestCluster) -> Result<ExperimentStatus> {
    experiments(cluster).get(EXPERIMENT).await?.status.context("no status")
}

fn counted(status: &ExperimentStatus) -> u64 {
    status.divergence.as_ref().map_or(0, |counts| counts.evaluated + counts.dropped)
}

/// Returns the uids of the revisions of all policies and experiments by their names.
async fn revisions(cluster: &TestCluster) -> Result<BTreeMap<String, Option<String>>> {
    let revisions = cluster.revisions().list(&ListParams::default()).await?;
    Ok(revisions.into_iter().map(|revision| (revision.name_any(), revision.metadata.uid)).collect())
}

/// The engine of a policy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    Cel,
    Rego,
    Wasm,
}

/// A policy that denies requests with its generation as the message, and the loads on it.
struct LivePolicy {
    name: &'static str,
    engine: Engine,
    generation: i64,
    /// The times at which each generation was first seen to be live, oldest first.
    live_times: Vec<(i64, Instant)>,
    loads: Vec<Load>,
}

impl LivePolicy {
    /// Creates a policy, waits until it is live, and starts its loads.
    async fn create(name: &'static str, engine: Engine, cluster: &TestCluster) -> Result<Self> {
        let mut policy = Self { name, engine, generation: 0, live_times: Vec::new(), loads: Vec::new() };
        policy.write(cluster).await?;
        policy.until_live(cluster).await?;
        policy.loads.push(Load::start_with(cluster.requester(name), Expected::Denied, RATE));
        // The module denies every request.
        if engine != Engine::Wasm {
            let exempt = cluster.requester(name).labelled(EXEMPT);
            policy.loads.push(Load::start_with(exempt, Expected::Allowed, RATE));
        }
        Ok(policy)
    }

    /// Writes the next generation.
    async fn write(&mut self, cluster: &TestCluster) -> Result<()> {
        self.generation += 1;
        let mut spec = with_long_timeout(policy_spec(self.name, &self.program(cluster).await?));
        spec["admission"]["failurePolicy"] = "Fail".into();
        let written = cluster.write(self.name, &spec).await?;
        ensure!(written == self.generation, "{} has generation {written}, not {}", self.name, self.generation);
        Ok(())
    }

    /// Returns the program of this generation.
    async fn program(&self, cluster: &TestCluster) -> Result<Value> {
        let message = self.generation.to_string();
        Ok(match self.engine {
            Engine::Cel => {
                let expression = format!("'{EXEMPT}' in object.metadata.labels");
                json!({"cel": {"validations": [{"expression": expression, "message": message}]}})
            }
            Engine::Rego => {
                let label = format!("object.get(input.request.object.metadata.labels, {EXEMPT:?}, null)");
                let source = format!("package upgrade\ndeny contains {message:?} if {{ {label} == null }}");
                json!({"rego": {"dialect": "Admission", "source": source}})
            }
            Engine::Wasm => {
                let repository = format!("modules/{}", self.name);
                cluster.node.push(&repository, &message, Registry::MODULE, &module::denying(&message)).await?;
                let registry = cluster.node.registry_in_pods();
                json!({"wasm": {"module": format!("registry://{registry}/{repository}:{message}")}})
            }
        })
    }

    /// Waits until this generation is live, and answers.
    async fn until_live(&mut self, cluster: &TestCluster) -> Result<()> {
        cluster.until_live(self.name, self.generation).await?;
        self.live_times.push((self.generation, Instant::now()));
        cluster.until_denied(self.name, &self.generation.to_string()).await
    }

    /// Checks that this generation is the newest one and live, and waits until each replica reports that it has loaded it.
    async fn until_loaded(&self, cluster: &TestCluster) -> Result<()> {
        let policy = cluster.policies().get(self.name).await?;
        let status = policy.status.clone().unwrap_or_default();
        let generations = (policy.metadata.generation, status.live_generation);
        ensure!(generations == (Some(self.generation), Some(self.generation)), "{}: {generations:?}", self.name);
        ensure!(status.phase == Some(PolicyPhase::Active), "{}: {status:#?}", self.name);
        until(&format!("{} {} on each replica", self.name, self.generation), WAIT_TIMEOUT, async || {
            let pods = cluster.replicas_of("default").await?;
            let pods: BTreeSet<_> = pods.into_iter().filter_map(|pod| pod.metadata.uid).collect();
            let revisions = cluster.revisions_of(self.name).await?;
            let is_ours = |spec: &PolicyRevisionSpec| {
                spec.role == RevisionRole::Live && spec.policy_ref.generation == self.generation
            };
            let revision = revisions.into_iter().find(|revision| is_ours(&revision.spec)).context("no revision")?;
            let items = revision.status.context("no status")?.replicas;
            let is_loaded = items.iter().all(|it| it.ready == ConditionStatus::True && it.reason == reasons::LOADED);
            let reporting: BTreeSet<_> = items.iter().map(|item| item.pod_uid.clone()).collect();
            ensure!(is_loaded && reporting == pods, "the replicas {pods:?} report {items:#?}");
            Ok(())
        })
        .await
    }
}
