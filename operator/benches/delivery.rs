//! The delivery of configuration policies by an operator with a real API server: the requests to the API server, and the seconds from the
//! `apply` of one changed policy, and of all, to the last delivery. Each component selects all policies, and gets no notification.
//!
//! Each size is reached in three stages: half of the policies and of the components, all policies, and then all components. The ratios
//! show the growth when the number of policies, and then that of components, doubles.
//!
//! Run `cargo bench -p operator --bench delivery`. Arguments after `--` are numbers of policies and of components (`1000x50 100x2000`).

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, may panic, and uses only a part of the shared module"
)]

#[path = "../tests/cluster/test_cluster.rs"]
mod test_cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicySubscription};
use serde_json::json;
use tokio::time::sleep;

use test_cluster::TestCluster;

/// The sizes of the issue: numbers of policies and of components.
const SIZES: [(usize, usize); 2] = [(1000, 50), (100, 2000)];
/// The namespace of the subscriptions.
const NAMESPACE: &str = "components";
/// The number of objects that are written at the same time.
const CONCURRENCY: usize = 16;
/// The longest time between two deliveries.
const DELIVERY_TIMEOUT: Duration = Duration::from_mins(10);
/// The operator is idle if it has sent no request for this time.
const IDLE_TIME: Duration = Duration::from_secs(3);
/// The metric with the requests of the operator to the API server.
const REQUESTS: &str = "proviso_operator_api_requests_total{";

type Changes = Pin<Box<dyn Stream<Item = watcher::Result<Event<PolicySubscription>>> + Send>>;

/// The requests of the operator, by verb and resource.
type Requests = BTreeMap<String, u64>;

#[tokio::main]
async fn main() -> Result<()> {
    let numbers = |argument: String| {
        let (policies, components) = argument.split_once('x')?;
        Some((policies.parse().ok()?, components.parse().ok()?))
    };
    let sizes: Vec<(usize, usize)> = std::env::args().skip(1).filter_map(numbers).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    for (policies, components) in sizes {
        measure(policies, components).await?;
    }
    Ok(())
}

/// A cluster with policies and components.
struct Bench {
    cluster: TestCluster,
    /// The generation of each policy, by its number.
    generations: Vec<i64>,
    components: usize,
}

/// The cost of one change.
struct Cost {
    seconds: f64,
    requests: u64,
}

async fn measure(policies: usize, components: usize) -> Result<()> {
    let mut cluster = TestCluster::start("operator-bench-delivery").await?;
    cluster.start_operator(&[])?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    proviso_e2e::manifests::apply(&cluster.client, &namespace.to_string()).await?;
    let mut bench = Bench { cluster, generations: Vec::new(), components: 0 };
    let mut before: Option<[Cost; 2]> = None;
    for (policies, components) in
        [(policies.div_ceil(2), components.div_ceil(2)), (policies, components.div_ceil(2)), (policies, components)]
    {
        bench.grow(policies, components).await?;
        println!("\n{policies} policies x {components} components");
        let costs = [bench.change(1).await?, bench.change(policies).await?];
        if let Some(before) = &before {
            for (name, (new, old)) in ["one policy", "all policies"].iter().zip(costs.iter().zip(before)) {
                let (time, requests) = (new.seconds / old.seconds, ratio(new.requests, old.requests));
                println!("  growth, {name}: time x {time:.2}, requests x {requests:.2}");
            }
        }
        before = Some(costs);
    }
    Ok(())
}

impl Bench {
    /// Creates the missing policies and components, and waits until each component has all policies.
    async fn grow(&mut self, policies: usize, components: usize) -> Result<()> {
        let first = self.generations.len();
        self.generations.resize(policies, 0);
        let start = Instant::now();
        self.apply(first..policies).await?;
        let api = self.subscriptions();
        stream::iter(self.components..components)
            .map(|number| subscribe(&api, number))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await?;
        self.components = components;
        let mut changes = self.watch();
        self.until_delivered(&mut changes).await?;
        println!("\ninstalled after {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Changes this number of policies, and waits until each component has them. Prints the time and the requests.
    async fn change(&mut self, number: usize) -> Result<Cost> {
        let before = self.requests().await?;
        let mut changes = self.watch();
        // The delivery is measured from events, so the watch must run before the change.
        loop {
            if let Event::InitDone = next(&mut changes).await? {
                break;
            }
        }
        let start = Instant::now();
        self.apply(0..number).await?;
        let applied = start.elapsed();
        self.until_delivered(&mut changes).await?;
        let seconds = start.elapsed().as_secs_f64();
        drop(changes);
        let after = self.requests().await?;
        let made: Requests = after
            .into_iter()
            .map(|(request, count)| {
                let old = before.get(&request).copied().unwrap_or_default();
                (request, count - old)
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        let requests = made.values().sum();
        let applied = applied.as_secs_f64();
        println!(
            "  change of {number}: {seconds:.2} s to the last delivery ({applied:.2} s to apply), {requests} requests"
        );
        for (request, count) in made {
            println!("    {count:8}  {request}");
        }
        Ok(Cost { seconds, requests })
    }

    /// Applies the next generation of these policies.
    async fn apply(&mut self, numbers: std::ops::Range<usize>) -> Result<()> {
        let policies = Api::<ClusterPolicy>::all(self.cluster.client.clone());
        let next = numbers.map(|number| (number, self.generations.get(number).copied().unwrap_or_default() + 1));
        let written: Vec<(usize, i64)> = stream::iter(next.collect::<Vec<_>>())
            .map(|(number, generation)| apply(&policies, number, generation))
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        for (number, generation) in written {
            self.generations[number] = generation;
        }
        Ok(())
    }

    /// Reads changes of the subscriptions until each component has each policy in its newest generation.
    async fn until_delivered(&self, changes: &mut Changes) -> Result<()> {
        let wanted: BTreeMap<_, _> = (0..self.generations.len())
            .map(|number| (format!("cluster.{}", name(number)), self.generations[number].to_string()))
            .collect();
        let mut delivered = BTreeSet::new();
        while delivered.len() < self.components {
            let (Event::Apply(subscription) | Event::InitApply(subscription)) = next(changes).await? else { continue };
            if has_all(&subscription, &wanted) {
                delivered.insert(subscription.name_any());
            } else {
                delivered.remove(&subscription.name_any());
            }
        }
        Ok(())
    }

    fn watch(&self) -> Changes {
        watcher(self.subscriptions(), watcher::Config::default()).default_backoff().boxed()
    }

    fn subscriptions(&self) -> Api<PolicySubscription> {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    /// Returns the requests of the operator so far, when it is idle: it has sent none for some seconds, except for the watches that it
    /// renews.
    async fn requests(&self) -> Result<Requests> {
        let mut before = self.requests_now().await?;
        loop {
            sleep(IDLE_TIME).await;
            let now = self.requests_now().await?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
    }

    async fn requests_now(&self) -> Result<Requests> {
        let metrics = self.cluster.metrics().await?;
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(REQUESTS));
        let request = |line: &str| {
            let (labels, count) = line.rsplit_once("} ").context("a line of a metric")?;
            Ok((labels.to_owned(), count.parse()?))
        };
        lines.filter(|line| !line.contains(r#"verb="watch""#)).map(request).collect()
    }
}

fn name(number: usize) -> String {
    format!("bench-{number}")
}

/// Writes a policy with other content in each generation. Returns its number and its generation.
async fn apply(policies: &Api<ClusterPolicy>, number: usize, generation: i64) -> Result<(usize, i64)> {
    let name = name(number);
    let content = json!({"generation": generation, "number": number, "text": "x".repeat(100)});
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
        "spec": {"configuration": {"configName": "bench", "content": content}},
    });
    let written = policies.patch(&name, &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
    Ok((number, written.metadata.generation.context("no generation")?))
}

/// Creates a component outside of Kubernetes, which selects all policies.
async fn subscribe(subscriptions: &Api<PolicySubscription>, number: usize) -> Result<()> {
    let name = format!("component-{number}");
    let subscription = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription", "metadata": {"name": name},
        "spec": {
            "scn": name, "policies": [{"filter": {"configName": "bench"}}],
            "delivery": {"configMap": format!("{name}-policies")},
        },
    });
    let parameters = PatchParams::apply("owner").force();
    subscriptions.patch(&name, &parameters, &Patch::Apply(subscription)).await?;
    Ok(())
}

/// Returns true if the component has acknowledged exactly these versions.
fn has_all(subscription: &PolicySubscription, wanted: &BTreeMap<String, String>) -> bool {
    let Some(status) = &subscription.status else { return false };
    status.policies.len() == wanted.len()
        && status.policies.iter().all(|policy| wanted.get(&policy.id) == Some(&policy.version))
}

/// Returns the next change of the subscriptions.
async fn next(changes: &mut Changes) -> Result<Event<PolicySubscription>> {
    let next = tokio::time::timeout(DELIVERY_TIMEOUT, changes.try_next()).await.context("no further delivery")?;
    next?.context("the watch has ended")
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn ratio(new: u64, old: u64) -> f64 {
    new as f64 / old.max(1) as f64
}
