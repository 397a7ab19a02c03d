//! Rollouts: a generation goes live, fails, is rolled back, and is continued by a restarted operator.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::PolicyPhase;
use proviso_e2e::until;

use super::{PolicyCluster, TEAM, spec};
use crate::test_cluster::{NAMESPACE, TIMEOUT};

#[tokio::test]
async fn a_first_policy_goes_live_when_every_replica_serves_it() -> Result<()> {
    let cluster = PolicyCluster::start("operator-first-policy").await?;
    ensure!(cluster.write(&spec("true")).await? == 1);
    let status = cluster.until_phase(PolicyPhase::Pending).await?;
    ensure!(status.conditions[0].type_ == "Scheduled" && status.conditions[0].status == "True", "{status:?}");
    cluster.report_initialized(1, "True", "Prepared", "").await?;
    cluster.report_loaded(1, "server-0", "True", "Loaded").await?;
    // One of two replicas is not enough.
    until("one of two replicas", TIMEOUT, async || {
        let replicas = cluster.status().await?.replicas.context("replicas")?;
        ensure!(replicas.summary == "1/2", "{replicas:?}");
        Ok(())
    })
    .await?;
    ensure!(cluster.paths().await? == (None, None), "there is a webhook before every replica serves the generation");
    cluster.report_loaded(1, "server-1", "True", "Loaded").await?;
    cluster.until_live(1).await?;
    cluster.until_phase(PolicyPhase::Active).await?;
    // The webhook covers only the namespace of the policy, and never Proviso's own namespace or the leases of the
    // cluster.
    let webhooks = cluster.webhooks();
    let webhook = webhooks.get("proviso-ns.team.labels").await?.webhooks.context("webhooks")?.remove(0);
    let selector = serde_json::to_string(&webhook.namespace_selector)?;
    ensure!(selector.contains(r#""values":["team"]"#), "{selector}");
    let conditions = serde_json::to_string(&webhook.match_conditions)?;
    ensure!(conditions.contains(NAMESPACE) && conditions.contains("leases"), "{conditions}");
    // The webhook has the CA bundle of the operator.
    let authority = cluster.api::<Secret>().get("proviso-ca").await?;
    let bundle = authority.data.context("its data")?.remove("bundle.crt");
    ensure!(bundle.is_some() && webhook.client_config.ca_bundle == bundle, "another bundle");
    Ok(())
}

#[tokio::test]
async fn a_failed_update_leaves_the_old_generation_live_and_reports_the_cause() -> Result<()> {
    let cluster = PolicyCluster::start("operator-failed-update").await?;
    cluster.write(&spec("true")).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    // The leader cannot prepare the next generation.
    cluster.write(&spec("2 > 1")).await?;
    cluster.report_initialized(2, "False", "CompileError", "spec.program.cel: no such thing").await?;
    let status = cluster.until_phase(PolicyPhase::Failed).await?;
    ensure!(status.live_generation == Some(1), "{status:?}");
    cluster.until_live(1).await?;
    // A user who can read only this namespace finds the reason there.
    let described = until("the event", TIMEOUT, async || {
        let described = cluster.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("Warning  CompileError"), "{described}");
        Ok(described)
    });
    let described = described.await?;
    ensure!(described.contains("no such thing") && described.contains("generation 1 goes on answering"), "{described}");
    // A replica cannot load the next generation.
    cluster.write(&spec("3 > 2")).await?;
    cluster.report_initialized(3, "True", "Prepared", "").await?;
    cluster.report_loaded(3, "server-0", "True", "Loaded").await?;
    cluster.report_loaded(3, "server-1", "False", "CacheError").await?;
    until("the replica's name", TIMEOUT, async || {
        let status = cluster.status().await?;
        let ready = status.conditions.iter().find(|it| it.type_ == "Ready").context("Ready")?;
        ensure!(ready.message.contains("server-1: CacheError"), "{ready:?}");
        Ok(())
    })
    .await?;
    cluster.until_live(1).await?;
    // The replica recovers.
    cluster.report_loaded(3, "server-1", "True", "Loaded").await?;
    cluster.until_live(3).await?;
    // API servers that have not seen the switch still call the old generation. A generation that was never live is
    // disabled at once.
    ensure!(cluster.revision(1).await?.spec.enabled, "generation 1 was unloaded at once");
    until("generation 2 to be disabled", TIMEOUT, async || {
        ensure!(!cluster.revision(2).await?.spec.enabled);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_rollback_is_a_new_generation_of_the_old_spec() -> Result<()> {
    let cluster = PolicyCluster::start("operator-rollback").await?;
    for (generation, expression) in [(1, "true"), (2, "false")] {
        cluster.write(&spec(expression)).await?;
        cluster.serve(generation).await?;
        cluster.until_live(generation).await?;
    }
    let roll_back = async |to: &str| {
        let annotation = format!("proviso.dev/rollback-to={to}");
        cluster.kubectl.run(&["annotate", "policy", "labels", &annotation, "--namespace", TEAM]).await
    };
    roll_back("1").await?;
    cluster.serve(3).await?;
    cluster.until_live(3).await?;
    let policy = cluster.policies().get("labels").await?;
    ensure!(
        policy.spec == cluster.revision(1).await?.spec.data
            && !policy.annotations().contains_key("proviso.dev/rollback-to")
    );
    // A rollback to a generation that is not retained is refused, and changes nothing.
    roll_back("17").await?;
    until("the refusal", TIMEOUT, async || {
        let described = cluster.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("no generation 17") && described.contains("1, 2, 3"), "{described}");
        Ok(())
    })
    .await?;
    let message = cluster.until_policy_condition("RolledBack", "False", "RollbackRefused", TIMEOUT).await?;
    ensure!(message.contains("generation 17"), "{message}");
    cluster.until_live(3).await
}

#[tokio::test]
async fn a_killed_operator_continues_after_a_restart() -> Result<()> {
    let mut cluster = PolicyCluster::start("operator-killed").await?;
    cluster.write(&spec("true")).await?;
    cluster.revision(1).await?;
    cluster.operators.clear();
    cluster.serve(1).await?;
    cluster.start_operator(&[])?;
    cluster.until_live(1).await?;
    // Two edits without an operator: only the second one is rolled out.
    cluster.operators.clear();
    cluster.write(&spec("2 > 1")).await?;
    ensure!(cluster.write(&spec("3 > 2")).await? == 3);
    cluster.start_operator(&[])?;
    cluster.serve(3).await?;
    cluster.until_live(3).await?;
    if cluster.revisions().get_opt("ns.team.labels-2").await?.is_some() {
        bail!("generation 2 has a revision, but no operator ran at that time");
    }
    Ok(())
}
