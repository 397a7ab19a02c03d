//! Several operators at once, with a real API server and the operator's binary: one leads, and another one takes over
//! when it ends.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use proviso_crds::PolicyRevision;
use proviso_e2e::until;

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

    /// Returns how often an operator has become the leader.
    fn times_leadership_was_won(&self) -> Result<usize> {
        Ok(self.log()?.matches("leading: the controllers start").count())
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
    cluster.start_as("first")?;
    cluster.until_leading("first").await?;
    cluster.start_as("second")?;
    until("the second operator", TIMEOUT, async || {
        ensure!(cluster.log()?.contains(r#""identity":"second""#), "it has not started");
        Ok(())
    })
    .await?;
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
    until("the third operator", TIMEOUT, async || {
        ensure!(cluster.log()?.contains(r#""identity":"third""#), "it has not started");
        Ok(())
    })
    .await?;
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
