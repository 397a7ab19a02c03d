//! Several operators at once, with a real API server and the operator's real program: one acts, and another when it ends.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use proviso_crds::PolicyRevision;
use proviso_e2e::until;

use crate::stage::{PATIENCE, Stage};

/// How long an operator that says nothing stays the one that acts: `proviso_election::LEASE_DURATION`.
const LEASE: Duration = Duration::from_secs(15);
/// How often the others look, and what a busy machine adds to that.
const SLACK: Duration = Duration::from_secs(10);

/// From what one operator wrote last until another one has the lease, by their own clock: whatever else a busy machine takes
/// its time for is no part of it.
fn gap(renewed: Timestamp, lease: &LeaseSpec) -> Result<Duration> {
    let acquired = lease.acquire_time.as_ref().context("nobody has it")?;
    Ok(acquired.0.duration_since(renewed).try_into()?)
}

impl Stage {
    fn start_as(&mut self, identity: &str) -> Result<()> {
        self.start_operator(&["--identity", identity])
    }

    async fn lease(&self) -> Result<LeaseSpec> {
        self.api::<Lease>().get("proviso-operator").await?.spec.context("spec")
    }

    /// When whoever holds the lease has renewed it.
    async fn renewed(&self) -> Result<Timestamp> {
        Ok(self.lease().await?.renew_time.context("nobody has it")?.0)
    }

    async fn holder(&self) -> Result<Option<String>> {
        let lease = self.api::<Lease>().get_opt("proviso-operator").await?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity))
    }

    async fn until_acting(&self, identity: &str) -> Result<()> {
        until(&format!("{identity} to act"), LEASE + PATIENCE, async || {
            let holder = self.holder().await?;
            ensure!(holder.as_deref() == Some(identity), "{holder:?}");
            Ok(())
        })
        .await
    }

    /// How often an operator has begun to act.
    fn beginnings(&self) -> Result<usize> {
        Ok(self.log()?.matches("leading: the controllers start").count())
    }

    /// Writes a policy and waits until somebody has taken it up; who may act by then.
    async fn taken_up(&self, policy: &str) -> Result<Option<String>> {
        self.policy(policy, "default", "true").await?;
        let (revisions, name) = (self.api::<PolicyRevision>(), format!("cluster.{policy}-1"));
        until(&name, LEASE + PATIENCE, async || Ok(revisions.get(&name).await?)).await?;
        self.holder().await
    }
}

#[tokio::test]
async fn of_two_operators_one_acts_and_the_other_when_it_is_killed_or_ends() -> Result<()> {
    let mut stage = Stage::start("operator-failover").await?;
    stage.start_as("first")?;
    stage.until_acting("first").await?;
    stage.start_as("second")?;
    until("the second operator", PATIENCE, async || {
        ensure!(stage.log()?.contains(r#""identity":"second""#), "it has not started");
        Ok(())
    })
    .await?;
    ensure!(stage.taken_up("a").await?.as_deref() == Some("first"));
    ensure!(stage.beginnings()? == 1, "both act");

    // Killed, it says nothing: its lease ends by itself, and nobody acts before that.
    drop(stage.operators.remove(0));
    let renewed = stage.renewed().await?;
    ensure!(stage.taken_up("b").await?.as_deref() == Some("second"));
    let gap_of_killed = gap(renewed, &stage.lease().await?)?;
    ensure!(gap_of_killed >= LEASE && gap_of_killed < LEASE + SLACK, "{gap_of_killed:?}");
    ensure!(stage.beginnings()? == 2);

    // Asked to end, it gives its lease back: the next one need not wait for its end.
    stage.start_as("third")?;
    until("the third operator", PATIENCE, async || {
        ensure!(stage.log()?.contains(r#""identity":"third""#), "it has not started");
        Ok(())
    })
    .await?;
    let before = stage.renewed().await?;
    let renewed = until("a lease renewed just now", PATIENCE, async || {
        let renewed = stage.renewed().await?;
        ensure!(renewed != before, "not yet");
        Ok(renewed)
    })
    .await?;
    stage.operators.remove(0).terminate().await?;
    let given_back = stage.lease().await?;
    ensure!(given_back.holder_identity.as_deref() != Some("second"), "{given_back:?}");
    ensure!(stage.taken_up("c").await?.as_deref() == Some("third"));
    // A lease that was not given back would have lasted until then.
    let gap_of_ended = gap(renewed, &stage.lease().await?)?;
    ensure!(gap_of_ended < LEASE, "{gap_of_ended:?}");
    ensure!(stage.beginnings()? == 3);
    Ok(())
}
