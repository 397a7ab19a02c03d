//! An operator whose API server is away, slow or half-open, or whose etcd is frozen. The operator goes on when the
//! fault ends, and rolls out the edits that were made meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proviso_crds::PolicyRevision;
use proviso_e2e::{Fault, Link, until};

use crate::test_cluster::{POD, TIMEOUT, TestCluster};

/// The time limit for the end of a leadership, and for a connection that the operator detects as broken.
const FAULT_TIMEOUT: Duration = Duration::from_mins(2);
/// The duration of a long outage: longer than a lease, and than several of the longest delays between two attempts.
const LONG_OUTAGE: Duration = Duration::from_mins(2);
const WON: &str = "leading: the controllers start";
const LOST: &str = "no longer leading: the controllers stop";

/// A cluster with an operator behind a proxy, and the live policy `a`.
struct LinkedCluster {
    cluster: TestCluster,
    link: Link,
}

impl LinkedCluster {
    async fn start(name: &str) -> Result<Self> {
        let mut cluster = TestCluster::start(name).await?;
        let link = cluster.plane.links().create("operator").await?;
        cluster.start_operator_at("127.0.0.1".parse()?, &link.kubeconfig, &[])?;
        cluster.create_policy_server().await?;
        cluster.make_live("a", "true").await?;
        cluster.until_active("a", 1).await?;
        Ok(Self { cluster, link })
    }

    /// Returns the number of the log lines so far with this message.
    fn logged(&self, message: &str) -> Result<usize> {
        Ok(self.cluster.log()?.matches(&format!("\"message\":\"{message}\"")).count())
    }

    /// Returns the number of requests of the operator so far, without those for its Lease.
    async fn requests(&self) -> Result<u64> {
        let metrics = self.cluster.metrics().await?;
        let lines = metrics.lines().filter(|line| line.starts_with("proviso_operator_api_requests_total{"));
        let mut sum = 0;
        for line in lines {
            sum += line.rsplit(' ').next().context("a number")?.parse::<u64>()?;
        }
        Ok(sum)
    }

    /// Waits until the operator has created the revision of an edit of the policy `a`, and rolls it out.
    async fn until_rolled_out(&self, generation: i64) -> Result<()> {
        let (revisions, name) = (self.cluster.api::<PolicyRevision>(), format!("cluster.a-{generation}"));
        until(&name, FAULT_TIMEOUT, async || Ok(revisions.get(&name).await?)).await?;
        self.cluster.serve(&name, POD).await?;
        // A watch that has failed several times starts again after up to half a minute.
        let path = format!("/validate/cluster.a/{generation}");
        until(&path, FAULT_TIMEOUT, async || {
            let current = self.cluster.path("proviso-cluster.a").await?;
            ensure!(current.as_deref() == Some(path.as_str()), "{current:?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn an_operator_without_api_server_retries_with_a_backoff_and_lists_expired_watches_again() -> Result<()> {
    let mut linked = LinkedCluster::start("operator-api-server-away").await?;
    let before = linked.cluster.calls_when_idle().await?;
    let (connections, requests) = (linked.link.proxy.connections(), linked.requests().await?);
    linked.link.proxy.set(Fault::Cut);
    // The API server starts again, and etcd has only the newest version of each object.
    linked.cluster.plane.expire_watches().await?;
    let generation = linked.cluster.apply_policy("a", "default", "2 > 1").await?;
    until("an interrupted watch", TIMEOUT, async || {
        ensure!(linked.logged("watch interrupted; trying again")? > 0, "nothing in the log");
        Ok(())
    })
    .await?;
    let (connections, requests) = (linked.link.proxy.connections() - connections, linked.requests().await? - requests);
    // The operator has some twenty watches. A hot loop would be thousands of requests.
    ensure!(connections <= 400 && requests <= 400, "{connections} connections, {requests} requests");

    linked.link.proxy.set(Fault::None);
    linked.until_rolled_out(generation).await?;
    let lists = linked.cluster.calls().await?.lists;
    ensure!(lists > before.lists, "the operator has not listed again: {lists} lists");
    Ok(())
}

#[tokio::test]
async fn an_operator_whose_network_hangs_stops_leading_and_does_not_retry_in_a_hot_loop() -> Result<()> {
    let linked = LinkedCluster::start("operator-network-hangs").await?;
    linked.cluster.calls_when_idle().await?;
    let (connections, requests) = (linked.link.proxy.connections(), linked.requests().await?);
    linked.link.proxy.set(Fault::Hang);
    let generation = linked.cluster.apply_policy("a", "default", "2 > 1").await?;
    until("the end of the leadership", FAULT_TIMEOUT, async || {
        ensure!(linked.logged(LOST)? == 1, "the operator still leads");
        Ok(())
    })
    .await?;
    let (connections, requests) = (linked.link.proxy.connections() - connections, linked.requests().await? - requests);
    ensure!(connections <= 100 && requests <= 100, "{connections} connections, {requests} requests");
    let path = linked.cluster.path("proviso-cluster.a").await?;
    ensure!(path.as_deref() == Some("/validate/cluster.a/1"), "{path:?}");

    linked.link.proxy.set(Fault::None);
    linked.until_rolled_out(generation).await?;
    ensure!(linked.logged(WON)? == 2, "the operator leads, and has not won an election");
    Ok(())
}

#[tokio::test]
async fn an_operator_works_with_a_slow_api_server_and_detects_half_open_connections() -> Result<()> {
    let linked = LinkedCluster::start("operator-slow-and-half-open").await?;
    linked.link.proxy.set(Fault::Delay(Duration::from_millis(300)));
    let generation = linked.cluster.apply_policy("a", "default", "2 > 1").await?;
    linked.until_rolled_out(generation).await?;
    linked.cluster.until_active("a", generation).await?;
    linked.link.proxy.set(Fault::None);
    ensure!(linked.logged(WON)? == 1 && linked.logged(LOST)? == 0, "the operator has lost its lease");

    // All connections are dropped silently. New ones work.
    let connections = linked.link.proxy.connections();
    linked.link.proxy.abandon();
    let generation = linked.cluster.apply_policy("a", "default", "3 > 2").await?;
    linked.until_rolled_out(generation).await?;
    let connections = linked.link.proxy.connections() - connections;
    ensure!(connections <= 200, "{connections} connections");
    Ok(())
}

#[tokio::test]
async fn an_operator_whose_etcd_is_frozen_stops_leading_and_continues_when_it_is_thawed() -> Result<()> {
    let mut linked = LinkedCluster::start("operator-etcd-frozen").await?;
    linked.cluster.calls_when_idle().await?;
    let (connections, requests) = (linked.link.proxy.connections(), linked.requests().await?);
    linked.cluster.plane.etcd().freeze()?;
    until("the end of the leadership", FAULT_TIMEOUT, async || {
        ensure!(linked.logged(LOST)? == 1, "the operator still leads");
        Ok(())
    })
    .await?;
    let (connections, requests) = (linked.link.proxy.connections() - connections, linked.requests().await? - requests);
    ensure!(connections <= 100 && requests <= 200, "{connections} connections, {requests} requests");

    linked.cluster.plane.etcd().thaw()?;
    let generation = until("a store that accepts writes", FAULT_TIMEOUT, async || {
        linked.cluster.apply_policy("a", "default", "2 > 1").await
    })
    .await?;
    linked.until_rolled_out(generation).await?;
    ensure!(linked.logged(WON)? == 2, "the operator leads, and has not won an election");
    linked.cluster.until_active("a", generation).await
}

#[tokio::test]
async fn an_operator_continues_after_an_api_server_was_away_for_two_minutes() -> Result<()> {
    let mut linked = LinkedCluster::start("operator-long-outage").await?;
    linked.cluster.calls_when_idle().await?;
    let connections = linked.link.proxy.connections();
    linked.cluster.plane.api_server(0).process().kill();
    // The fault is the time that passes.
    tokio::time::sleep(LONG_OUTAGE).await;
    ensure!(linked.logged(LOST)? == 1, "the operator still leads");
    // The operator reads its Lease every two seconds. A hot loop would be more than ten thousand connections.
    let connections = linked.link.proxy.connections() - connections;
    ensure!(connections <= 1500, "{connections} connections");

    let server = linked.cluster.plane.api_server(0);
    server.process().restart()?;
    server.until_ready().await?;
    let path = linked.cluster.path("proviso-cluster.a").await?;
    ensure!(path.as_deref() == Some("/validate/cluster.a/1"), "{path:?}");
    let generation = linked.cluster.apply_policy("a", "default", "2 > 1").await?;
    linked.until_rolled_out(generation).await?;
    ensure!(linked.logged(WON)? == 2, "the operator leads, and has not won an election");
    linked.cluster.until_active("a", generation).await
}
