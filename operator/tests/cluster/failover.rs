//! Several operators at once, with a real API server and the operator's binary: one leads, and another one takes over
//! when it ends.

mod clocks;
mod permissions;
mod two_leaders;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use proviso_crds::PolicyRevision;
use proviso_e2e::until;
use rustix::process::{Pid, Signal, kill_process};

use crate::test_cluster::{TIMEOUT, TestCluster};

/// The time after which a leader loses its lease if it does not renew it: `proviso_election::LEASE_DURATION`.
const LEASE: Duration = Duration::from_secs(15);
/// The polling interval of the other operators, and the delay of a busy machine.
const SLACK: Duration = Duration::from_secs(10);

/// Returns the time from the last renewal of one operator to the acquisition of the lease by another one, by the
/// clocks of the operators, so that delays of the test do not count.
fn gap(renewed: Timestamp, lease: &LeaseSpec) -> Result<Duration> {
    let acquired = lease.acquire_time.as_ref().context("no operator holds the lease")?;
    Ok(acquired.0.duration_since(renewed).try_into()?)
}

impl TestCluster {
    fn start_as(&mut self, identity: &str) -> Result<()> {
        self.start_operator(&["--identity", identity])
    }

    async fn lease(&self) -> Result<LeaseSpec> {
        self.api::<Lease>().get("proviso-operator").await?.spec.context("spec")
    }

    /// Returns the time of the last renewal of the lease.
    async fn renewed(&self) -> Result<Timestamp> {
        Ok(self.lease().await?.renew_time.context("no operator holds the lease")?.0)
    }

    async fn holder(&self) -> Result<Option<String>> {
        let lease = self.api::<Lease>().get_opt("proviso-operator").await?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity))
    }

    async fn until_leading(&self, identity: &str) -> Result<()> {
        until(&format!("{identity} to lead"), LEASE + TIMEOUT, async || {
            let holder = self.holder().await?;
            ensure!(holder.as_deref() == Some(identity), "{holder:?}");
            Ok(())
        })
        .await
    }

    /// Starts two operators. The first one leads.
    async fn start_first_and_second(&mut self) -> Result<()> {
        self.start_as("first")?;
        self.until_leading("first").await?;
        self.start_as("second")?;
        self.until_started("second").await
    }

    /// Waits until an operator has joined the election.
    async fn until_started(&self, identity: &str) -> Result<()> {
        until(&format!("the start of {identity}"), TIMEOUT, async || {
            ensure!(self.log()?.contains(&format!(r#""identity":"{identity}""#)), "it has not started");
            Ok(())
        })
        .await
    }

    /// Returns how often an operator has become the leader.
    fn times_leadership_was_won(&self) -> Result<usize> {
        Ok(self.log()?.matches("leading: the controllers start").count())
    }

    /// Returns how often a leader has noticed that it does not lead any more.
    fn times_leadership_was_lost(&self) -> Result<usize> {
        Ok(self.log()?.matches("no longer leading").count())
    }

    /// Writes a policy, and waits until an operator has created its revision. Returns the leader.
    async fn until_revision_created(&self, policy: &str) -> Result<Option<String>> {
        self.apply_policy(policy, "default", "true").await?;
        let (revisions, name) = (self.api::<PolicyRevision>(), format!("cluster.{policy}-1"));
        until(&name, LEASE + TIMEOUT, async || Ok(revisions.get(&name).await?)).await?;
        self.holder().await
    }
}

#[tokio::test]
async fn the_standby_operator_takes_over_after_a_kill_or_a_shutdown() -> Result<()> {
    let mut cluster = TestCluster::start("operator-failover").await?;
    cluster.start_first_and_second().await?;
    ensure!(cluster.until_revision_created("a").await?.as_deref() == Some("first"));
    ensure!(cluster.times_leadership_was_won()? == 1, "both operators lead");

    // A killed operator does not release its lease, so no operator leads before the lease expires.
    drop(cluster.operators.remove(0));
    let renewed = cluster.renewed().await?;
    ensure!(cluster.until_revision_created("b").await?.as_deref() == Some("second"));
    let gap_of_killed = gap(renewed, &cluster.lease().await?)?;
    ensure!(gap_of_killed >= LEASE && gap_of_killed < LEASE + SLACK, "{gap_of_killed:?}");
    ensure!(cluster.times_leadership_was_won()? == 2);

    // A terminated operator releases its lease, so the next one does not wait for the expiry.
    cluster.start_as("third")?;
    cluster.until_started("third").await?;
    let before = cluster.renewed().await?;
    let renewed = until("another renewal of the lease", TIMEOUT, async || {
        let renewed = cluster.renewed().await?;
        ensure!(renewed != before, "not yet");
        Ok(renewed)
    })
    .await?;
    cluster.operators.remove(0).terminate().await?;
    let released = cluster.lease().await?;
    ensure!(released.holder_identity.as_deref() != Some("second"), "{released:?}");
    ensure!(cluster.until_revision_created("c").await?.as_deref() == Some("third"));
    // A lease that was not released would have lasted until then.
    let gap_of_ended = gap(renewed, &cluster.lease().await?)?;
    ensure!(gap_of_ended < LEASE, "{gap_of_ended:?}");
    ensure!(cluster.times_leadership_was_won()? == 3);
    Ok(())
}

#[tokio::test]
async fn a_frozen_operator_changes_nothing_when_it_wakes_up_after_its_lease() -> Result<()> {
    let mut cluster = TestCluster::start("operator-frozen").await?;
    cluster.start_first_and_second().await?;
    cluster.create_policy_server().await?;
    cluster.make_live("a", "true").await?;
    cluster.until_active("a", 1).await?;
    let frozen = Pid::from_child(&cluster.operators[0].0);
    kill_process(frozen, Signal::STOP)?;
    // When the frozen operator wakes up, the events of this rollout wait in its connections.
    let generation = cluster.apply_policy("a", "default", "2 > 1").await?;
    cluster.until_leading("second").await?;
    cluster.make_live("a", "2 > 1").await?;
    cluster.until_active("a", generation).await?;
    let revisions = cluster.api::<PolicyRevision>();
    let check_marks = async || {
        for (name, wanted) in [("cluster.a-1", "False"), ("cluster.a-2", "True")] {
            let conditions = revisions.get(name).await?.status.context("no status")?.conditions;
            let live = conditions.iter().find(|it| it.type_ == "Live").context("no condition Live")?;
            ensure!(live.status == wanted, "{name}: {live:?}");
        }
        anyhow::Ok(())
    };
    until("the marks of both generations", TIMEOUT, async || check_marks().await).await?;
    let webhook = "proviso-cluster.a";
    let before = cluster.webhooks().get(webhook).await?;
    ensure!(cluster.times_leadership_was_lost()? == 0, "the frozen operator runs");

    kill_process(frozen, Signal::CONT)?;
    let renewed = cluster.renewed().await?;
    let mut paths = BTreeSet::new();
    until("the end of the former leadership, and another renewal of the lease", TIMEOUT, async || {
        paths.insert(cluster.path(webhook).await?);
        ensure!(cluster.times_leadership_was_lost()? == 1, "the former leader has not noticed");
        ensure!(cluster.renewed().await? != renewed, "the lease was not renewed");
        Ok(())
    })
    .await?;
    let live = Some(format!("/validate/cluster.a/{generation}"));
    ensure!(paths.iter().all(|path| *path == live), "{paths:?}");
    let after = cluster.webhooks().get(webhook).await?;
    ensure!(after.resource_version() == before.resource_version(), "the webhook was written again: {after:#?}");
    check_marks().await?;
    ensure!(cluster.holder().await?.as_deref() == Some("second"));
    ensure!(cluster.times_leadership_was_won()? == 2);
    cluster.make_live("a", "3 > 2").await
}

#[tokio::test]
async fn a_deleted_lease_is_created_again_and_one_operator_leads() -> Result<()> {
    let mut cluster = TestCluster::start("operator-lease-deleted").await?;
    cluster.start_first_and_second().await?;
    ensure!(cluster.until_revision_created("a").await?.as_deref() == Some("first"));
    let leases = cluster.api::<Lease>();
    let deleted = leases.get("proviso-operator").await?.uid();
    leases.delete("proviso-operator", &DeleteParams::default()).await?;
    let holder = until("another Lease with a holder", TIMEOUT, async || {
        let lease = leases.get("proviso-operator").await?;
        ensure!(lease.uid() != deleted, "the old Lease");
        lease.spec.and_then(|spec| spec.holder_identity).context("no operator holds the lease")
    })
    .await?;
    until("one leader", TIMEOUT, async || {
        let (won, lost) = (cluster.times_leadership_was_won()?, cluster.times_leadership_was_lost()?);
        let wanted = if holder == "first" { (1, 0) } else { (2, 1) };
        ensure!((won, lost) == wanted, "{holder}: won {won}, lost {lost}");
        Ok(())
    })
    .await?;
    ensure!(cluster.until_revision_created("b").await? == Some(holder));
    Ok(())
}
