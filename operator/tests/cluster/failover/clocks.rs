//! Operators whose clocks are wrong by minutes.

use std::time::Instant;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use proviso_e2e::{clock, until};

use super::{LEASE, SLACK};
use crate::rotation::verify;
use crate::test_cluster::{TIMEOUT, TestCluster};

/// The offsets of the clocks. A certificate is backdated by five minutes, so a clock may be ahead by a little less.
const SLOW: &str = "-240s";
const FAST: &str = "+240s";
const CERTIFICATE: &str = "policy-server-default-tls";

impl TestCluster {
    fn start_with_clock(&mut self, identity: &str, clock: &[(&str, String)]) -> Result<()> {
        let kubeconfig = self.plane.kubeconfig().to_owned();
        self.start_operator_with("127.0.0.1".parse()?, &kubeconfig, &["--identity", identity], clock)
    }

    /// Waits until an API server with the right clock trusts the certificate of the replicas.
    async fn until_trusted(&self) -> Result<()> {
        until("a trusted certificate", TIMEOUT, async || {
            verify(&self.secret(CERTIFICATE, "tls.crt").await?, &self.published_bundle("a").await?)
        })
        .await
    }

    /// Kills the leader, and waits until this operator leads. Checks that it has waited for the end of the lease by the
    /// time that has passed, and not by a clock.
    async fn kill_leader_and_follow(&mut self, next: &str) -> Result<()> {
        drop(self.operators.remove(0));
        let killed = Instant::now();
        self.until_leading(next).await?;
        let waited = killed.elapsed();
        // The last renewal was some seconds before the end of the leader.
        ensure!(waited + SLACK >= LEASE && waited < LEASE + SLACK, "{next} leads after {waited:?}");
        Ok(())
    }
}

#[tokio::test]
async fn operators_with_clocks_eight_minutes_apart_agree_on_a_leader_and_issue_trusted_certificates() -> Result<()> {
    let (Some(slow), Some(fast)) = (clock::shifted(SLOW), clock::shifted(FAST)) else {
        ensure!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "faketime is not installed: make tools");
        eprintln!("skipped, because faketime is not installed: make tools");
        return Ok(());
    };
    let mut cluster = TestCluster::start("operator-clocks").await?;
    cluster.start_with_clock("slow", &slow)?;
    cluster.until_leading("slow").await?;
    cluster.create_policy_server().await?;
    cluster.make_live("a", "true").await?;
    cluster.until_active("a", 1).await?;
    cluster.until_trusted().await?;

    // For the other operator, the leader renews its lease with times that are eight minutes old.
    cluster.start_with_clock("fast", &fast)?;
    cluster.until_started("fast").await?;
    let mut renewed = cluster.renewed().await?;
    for _ in 0..2 {
        renewed = until("another renewal of the lease", TIMEOUT, async || {
            let now = cluster.renewed().await?;
            ensure!(now != renewed, "not yet");
            Ok(now)
        })
        .await?;
    }
    ensure!(cluster.holder().await?.as_deref() == Some("slow"));
    ensure!(cluster.times_leadership_was_won()? == 1 && cluster.times_leadership_was_lost()? == 0);
    cluster.kill_leader_and_follow("fast").await?;
    cluster.make_live("a", "2 > 1").await?;
    cluster.until_active("a", 2).await?;
    cluster.until_trusted().await?;
    // A certificate of an operator whose clock is ahead is valid at once.
    let before = cluster.secret(CERTIFICATE, "tls.crt").await?;
    cluster.api::<Secret>().delete(CERTIFICATE, &DeleteParams::default()).await?;
    until("another certificate", TIMEOUT, async || {
        ensure!(cluster.secret(CERTIFICATE, "tls.crt").await? != before, "the deleted one");
        Ok(())
    })
    .await?;
    cluster.until_trusted().await?;

    // For the next operator, the times of the last renewals are in the future.
    cluster.start_with_clock("slow-again", &slow)?;
    cluster.until_started("slow-again").await?;
    cluster.kill_leader_and_follow("slow-again").await?;
    cluster.make_live("a", "3 > 2").await?;
    cluster.until_active("a", 3).await?;
    cluster.until_trusted().await
}
