//! The requests of the operator to a real API server, and its memory: for an edit of one policy, for a pod that stops
//! being Ready and becomes Ready again, and for a rolling restart of all replicas. The benchmark plays the policy
//! servers.
//!
//! Run `cargo bench -p operator --bench calls`. Arguments after `--` are numbers of policies and of replicas (`100x2
//! 500x10 2000x2`).

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

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use proviso_e2e::until;
use serde_json::json;

use test_cluster::{Calls, TIMEOUT, TestCluster};

/// The number of policies that are created or served at the same time.
const CONCURRENCY: usize = 16;

#[tokio::main]
async fn main() -> Result<()> {
    let numbers = |argument: String| {
        let (policies, replicas) = argument.split_once('x')?;
        Some((policies.parse().ok()?, replicas.parse().ok()?))
    };
    let sizes: Vec<(usize, usize)> = std::env::args().skip(1).filter_map(numbers).collect();
    let sizes = if sizes.is_empty() { vec![(100, 2), (500, 10), (2000, 2)] } else { sizes };
    println!("policies  replicas  event             writes    lists     gets  writes/policy  operator MiB");
    for (policies, replicas) in sizes {
        measure(policies, replicas).await?;
    }
    Ok(())
}

fn pod(number: usize) -> String {
    format!("policy-server-default-{number}")
}

fn not_ready() -> serde_json::Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": null})
}

async fn measure(policies: usize, replicas: usize) -> Result<()> {
    let mut cluster = TestCluster::start("operator-bench-calls").await?;
    cluster.start_operator(&[])?;
    cluster.apply_server("default", json!({"replicas": replicas})).await?;
    for number in 0..replicas {
        until("the replica", TIMEOUT, async || cluster.make_ready(&pod(number)).await).await?;
    }
    let cluster = &cluster;
    let live = async |number: usize, expression: &'static str| -> Result<()> {
        let name = format!("p{number}");
        let generation = cluster.apply_policy(&name, "default", expression).await?;
        let revision = format!("cluster.{name}-{generation}");
        cluster.serve(&revision, &pod(0)).await?;
        for number in 1..replicas {
            cluster.load(&revision, &pod(number)).await?;
        }
        cluster.until_active(&name, generation).await
    };
    stream::iter(0..policies)
        .map(|number| live(number, "true"))
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await?;
    let mut before = cluster.calls_when_idle().await?;
    let mut report = async |event: &str| -> Result<()> {
        let now = cluster.calls_when_idle().await?;
        let Calls { writes, lists, gets } = now - before;
        before = now;
        let (each, memory) = (ratio(writes, policies), cluster.memory()?);
        println!("{policies:8}  {replicas:8}  {event:14}  {writes:8} {lists:8} {gets:8}  {each:13.2}  {memory:12}");
        Ok(())
    };
    live(0, "2 > 1").await?;
    report("an edit").await?;
    cluster.set_pod_status(&pod(0), not_ready()).await?;
    report("not Ready").await?;
    cluster.make_ready(&pod(0)).await?;
    report("Ready again").await?;
    cluster.replace_pod(&pod(0)).await?;
    report("a replaced pod").await?;
    for number in 0..replicas {
        cluster.replace_pod(&pod(number)).await?;
    }
    report("rolling restart").await?;
    report("idle").await
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn ratio(writes: u64, policies: usize) -> f64 {
    writes as f64 / policies as f64
}

impl TestCluster {
    /// Returns the memory that the operator uses, in MiB.
    fn memory(&self) -> Result<u64> {
        let pid = self.operators.last().context("no operator")?.0.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kib: u64 = line.split_whitespace().next().context("a number")?.parse()?;
        Ok(kib / 1024)
    }
}
