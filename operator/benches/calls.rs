//! The requests of the operator to a real API server, and its memory: for an edit of one policy, for a replica whose pod is Ready
//! no more and again, and for a rolling restart of all replicas. The policy servers are played by this program.
//!
//! `cargo bench -p operator --bench calls`; after `--`, the numbers of policies and of replicas (`100x2 500x10 2000x2`).

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, may give up, and shares a module of which it uses a part"
)]

#[path = "../tests/cluster/stage.rs"]
mod stage;

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use proviso_e2e::until;
use serde_json::json;

use stage::{Calls, PATIENCE, Stage};

/// The number of policies that this program makes or serves at the same time.
const AT_ONCE: usize = 16;

#[tokio::main]
async fn main() -> Result<()> {
    let numbers = |argument: String| {
        let (policies, replicas) = argument.split_once('x')?;
        Some((policies.parse().ok()?, replicas.parse().ok()?))
    };
    let sizes: Vec<(usize, usize)> = std::env::args().skip(1).filter_map(numbers).collect();
    let sizes = if sizes.is_empty() { vec![(100, 2), (500, 10), (2000, 2)] } else { sizes };
    println!("policies  replicas  what              writes    lists     gets  writes/policy  operator MiB");
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
    let mut stage = Stage::start("operator-bench-calls").await?;
    stage.start_operator(&[])?;
    stage.server("default", json!({"replicas": replicas})).await?;
    for number in 0..replicas {
        until("the replica", PATIENCE, async || stage.ready(&pod(number)).await).await?;
    }
    let stage = &stage;
    let live = async |number: usize, expression: &'static str| -> Result<()> {
        let name = format!("p{number}");
        let generation = stage.policy(&name, "default", expression).await?;
        let revision = format!("cluster.{name}-{generation}");
        stage.serve(&revision, &pod(0)).await?;
        for number in 1..replicas {
            stage.load(&revision, &pod(number)).await?;
        }
        stage.until_active(&name, generation).await
    };
    stream::iter(0..policies).map(|number| live(number, "true")).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    let mut before = stage.calls_at_rest().await?;
    let mut report = async |what: &str| -> Result<()> {
        let now = stage.calls_at_rest().await?;
        let Calls { writes, lists, gets } = now - before;
        before = now;
        let (each, memory) = (ratio(writes, policies), stage.memory()?);
        println!("{policies:8}  {replicas:8}  {what:14}  {writes:8} {lists:8} {gets:8}  {each:13.2}  {memory:12}");
        Ok(())
    };
    live(0, "2 > 1").await?;
    report("an edit").await?;
    stage.say_of_pod(&pod(0), not_ready()).await?;
    report("not Ready").await?;
    stage.ready(&pod(0)).await?;
    report("Ready again").await?;
    stage.replace_pod(&pod(0)).await?;
    report("a replaced pod").await?;
    for number in 0..replicas {
        stage.replace_pod(&pod(number)).await?;
    }
    report("rolling restart").await?;
    report("idle").await
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn ratio(writes: u64, policies: usize) -> f64 {
    writes as f64 / policies as f64
}

impl Stage {
    /// The memory that the operator has in use, in MiB.
    fn memory(&self) -> Result<u64> {
        let pid = self.operators.last().context("no operator")?.0.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kib: u64 = line.split_whitespace().next().context("a number")?.parse()?;
        Ok(kib / 1024)
    }
}
