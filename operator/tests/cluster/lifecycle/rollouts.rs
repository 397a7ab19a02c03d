//! From one generation to the next: live, failed, rolled back, and taken up again by another operator.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::PolicyPhase;
use proviso_e2e::until;

use super::{Stage, TEAM, spec};
use crate::stage::{NAMESPACE, PATIENCE};

#[tokio::test]
async fn a_first_policy_goes_live_when_every_replica_serves_it() -> Result<()> {
    let stage = Stage::start("operator-first-policy").await?;
    ensure!(stage.write(&spec("true")).await? == 1);
    let status = stage.until_phase(PolicyPhase::Pending).await?;
    ensure!(status.conditions[0].type_ == "Scheduled" && status.conditions[0].status == "True", "{status:?}");
    stage.initialized(1, "True", "Prepared", "").await?;
    stage.loaded(1, "server-0", "True", "Loaded").await?;
    // One of two is not enough.
    until("one of two replicas", PATIENCE, async || {
        let replicas = stage.status().await?.replicas.context("replicas")?;
        ensure!(replicas.summary == "1/2", "{replicas:?}");
        Ok(())
    })
    .await?;
    ensure!(stage.paths().await? == (None, None), "a webhook before everybody serves it");
    stage.loaded(1, "server-1", "True", "Loaded").await?;
    stage.until_live(1).await?;
    stage.until_phase(PolicyPhase::Active).await?;
    // Only the owner's namespace is asked about, and never Proviso's own or the leases of the cluster.
    let webhooks = stage.webhooks();
    let webhook = webhooks.get("proviso-ns.team.labels").await?.webhooks.context("webhooks")?.remove(0);
    let selector = serde_json::to_string(&webhook.namespace_selector)?;
    ensure!(selector.contains(r#""values":["team"]"#), "{selector}");
    let conditions = serde_json::to_string(&webhook.match_conditions)?;
    ensure!(conditions.contains(NAMESPACE) && conditions.contains("leases"), "{conditions}");
    // The API server trusts whom the operator's authority vouches for.
    let authority = stage.api::<Secret>().get("proviso-ca").await?;
    let bundle = authority.data.context("its data")?.remove("bundle.crt");
    ensure!(bundle.is_some() && webhook.client_config.ca_bundle == bundle, "another bundle");
    Ok(())
}

#[tokio::test]
async fn an_update_that_fails_leaves_the_old_generation_live_and_its_owner_sees_why() -> Result<()> {
    let stage = Stage::start("operator-failed-update").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    // The leader cannot prepare it.
    stage.write(&spec("2 > 1")).await?;
    stage.initialized(2, "False", "CompileError", "spec.program.cel: no such thing").await?;
    let status = stage.until_phase(PolicyPhase::Failed).await?;
    ensure!(status.live_generation == Some(1), "{status:?}");
    stage.until_live(1).await?;
    // Whoever sees only this namespace learns it there.
    let described = until("the event", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("Warning  CompileError"), "{described}");
        Ok(described)
    });
    let described = described.await?;
    ensure!(described.contains("no such thing") && described.contains("generation 1 goes on answering"), "{described}");
    // A replica cannot load the next one.
    stage.write(&spec("3 > 2")).await?;
    stage.initialized(3, "True", "Prepared", "").await?;
    stage.loaded(3, "server-0", "True", "Loaded").await?;
    stage.loaded(3, "server-1", "False", "CacheError").await?;
    until("the replica's name", PATIENCE, async || {
        let status = stage.status().await?;
        let ready = status.conditions.iter().find(|it| it.type_ == "Ready").context("Ready")?;
        ensure!(ready.message.contains("server-1: CacheError"), "{ready:?}");
        Ok(())
    })
    .await?;
    stage.until_live(1).await?;
    // It recovers.
    stage.loaded(3, "server-1", "True", "Loaded").await?;
    stage.until_live(3).await?;
    // API servers that have not seen the switch still ask the old one; what never was live is let go.
    ensure!(stage.revision(1).await?.spec.enabled, "generation 1 was unloaded at once");
    until("generation 2 to be disabled", PATIENCE, async || {
        ensure!(!stage.revision(2).await?.spec.enabled);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_rollback_is_a_new_generation_of_the_old_spec() -> Result<()> {
    let stage = Stage::start("operator-rollback").await?;
    for (generation, expression) in [(1, "true"), (2, "false")] {
        stage.write(&spec(expression)).await?;
        stage.serve(generation).await?;
        stage.until_live(generation).await?;
    }
    let roll_back = async |to: &str| {
        let annotation = format!("proviso.dev/rollback-to={to}");
        stage.kubectl.run(&["annotate", "policy", "labels", &annotation, "--namespace", TEAM]).await
    };
    roll_back("1").await?;
    stage.serve(3).await?;
    stage.until_live(3).await?;
    let policy = stage.policies().get("labels").await?;
    ensure!(
        policy.spec == stage.revision(1).await?.spec.data
            && !policy.annotations().contains_key("proviso.dev/rollback-to")
    );
    // What is not kept cannot be gone back to, and nothing happens.
    roll_back("17").await?;
    until("the refusal", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("no generation 17") && described.contains("1, 2, 3"), "{described}");
        Ok(())
    })
    .await?;
    stage.until_live(3).await
}

#[tokio::test]
async fn an_operator_that_was_killed_goes_on_where_it_was() -> Result<()> {
    let mut stage = Stage::start("operator-killed").await?;
    stage.write(&spec("true")).await?;
    stage.revision(1).await?;
    stage.operators.clear();
    stage.serve(1).await?;
    stage.start_operator(&[])?;
    stage.until_live(1).await?;
    // Two edits while nobody looks: the second counts.
    stage.operators.clear();
    stage.write(&spec("2 > 1")).await?;
    ensure!(stage.write(&spec("3 > 2")).await? == 3);
    stage.start_operator(&[])?;
    stage.serve(3).await?;
    stage.until_live(3).await?;
    if stage.revisions().get_opt("ns.team.labels-2").await?.is_some() {
        bail!("a revision of a generation that nobody saw");
    }
    Ok(())
}
