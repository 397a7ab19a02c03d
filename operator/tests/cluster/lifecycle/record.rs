//! The operator's record of the live generation: webhooks follow it, whatever somebody points them at, and an operator
//! that stopped in the middle of a switch continues it.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use proviso_crds::PolicyPhase;
use proviso_crds::fixtures::condition;
use proviso_e2e::until;
use serde_json::json;

use super::{PolicyCluster, WEBHOOK, spec};
use crate::test_cluster::TIMEOUT;

#[tokio::test]
async fn a_path_that_somebody_changed_is_put_back_while_the_newest_generation_fails() -> Result<()> {
    let cluster = PolicyCluster::start("operator-path-by-hand").await?;
    for generation in 1..=2 {
        cluster.write(&spec(&format!("{generation} > 0"))).await?;
        cluster.serve(generation).await?;
        cluster.until_live(generation).await?;
    }
    cluster.write(&spec("3 > 2")).await?;
    cluster.report_initialized(3, "False", "CompileError", "no").await?;
    cluster.until_phase(PolicyPhase::Failed).await?;
    for path in [
        // The generation that was live before, the one that fails, one that never existed, and another policy.
        "/validate/ns.team.labels/1",
        "/validate/ns.team.labels/3",
        "/validate/ns.team.labels/9",
        "/validate/cluster.labels/2",
    ] {
        cluster.set_path(path).await?;
        cluster.until_live(2).await?;
        let (status, live) = (cluster.status().await?, cluster.live_condition(2).await?);
        ensure!(status.phase == Some(PolicyPhase::Failed) && live.status == "True", "{path}: {status:?} {live:?}");
    }
    // The generation that somebody made the webhook call answers until API servers know that it is put back.
    ensure!(cluster.revision(1).await?.spec.enabled);
    Ok(())
}

#[tokio::test]
async fn break_glass_keeps_the_called_generation_loaded_and_the_record_unchanged() -> Result<()> {
    let cluster = PolicyCluster::start_with("operator-break-glass-path", &["--retire-after=5s"]).await?;
    for generation in 1..=2 {
        cluster.write(&spec(&format!("{generation} > 0"))).await?;
        cluster.serve(generation).await?;
        cluster.until_live(generation).await?;
    }
    let until_enabled = async |generation: i64, expected: bool| {
        until(&format!("generation {generation} enabled: {expected}"), TIMEOUT, async || {
            ensure!(cluster.revision(generation).await?.spec.enabled == expected);
            Ok(())
        })
        .await
    };
    until_enabled(1, false).await?;
    let object = format!("validatingwebhookconfiguration/{WEBHOOK}");
    cluster.kubectl.run(&["annotate", &object, "proviso.dev/break-glass=INC-18"]).await?;
    cluster.set_path("/validate/ns.team.labels/1").await?;
    // The generation that the webhook calls is loaded again. The status reports it, and the record stays.
    until_enabled(1, true).await?;
    until("the status", TIMEOUT, async || {
        let status = cluster.status().await?;
        let is_honest = status.live_generation == Some(1) && status.phase == Some(PolicyPhase::Updating);
        let live = status.conditions.iter().find(|it| it.type_ == "Live");
        let names_both = "(the generation that it calls: 1; the live generation on record: 2)";
        ensure!(is_honest && live.is_some_and(|it| it.message.contains(names_both)), "{status:?}");
        Ok(())
    })
    .await?;
    let (called, record) = (cluster.live_condition(1).await?, cluster.live_condition(2).await?);
    ensure!((called.status.as_str(), record.status.as_str()) == ("Unknown", "True"), "{called:?} {record:?}");
    ensure!(cluster.paths().await? == (Some("/validate/ns.team.labels/1".to_owned()), None));

    // The end of break-glass restores the record. The other generation answers for its whole grace period.
    let ended = Timestamp::now();
    cluster.kubectl.run(&["annotate", &object, "proviso.dev/break-glass-"]).await?;
    cluster.until_live(2).await?;
    until_enabled(1, false).await?;
    let retired = cluster.live_condition(1).await?;
    let grace = Timestamp::now().duration_since(retired.last_transition_time.0);
    ensure!(retired.status == "False" && retired.last_transition_time.0.as_second() >= ended.as_second());
    ensure!(Duration::try_from(grace)? >= Duration::from_secs(5), "generation 1 was retired after {grace}");
    Ok(())
}

#[tokio::test]
async fn an_interrupted_switch_is_continued_and_its_grace_period_begins_then() -> Result<()> {
    let mut cluster = PolicyCluster::start("operator-interrupted-switch").await?;
    cluster.write(&spec("true")).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    cluster.write(&spec("2 > 1")).await?;
    let revision = cluster.revision(2).await?;
    // The operator stops after it has written the record, and before it switches the webhook. A replica then reports a
    // failure, which must not undo the switch.
    cluster.operators.clear();
    cluster.serve(2).await?;
    let live = json!({"conditions": [condition("Live", "True", "Live", "", 2)]});
    cluster.apply_revision_status(&revision, "proviso-operator", live).await?;
    cluster.report_loaded(2, "server-1", "False", "CacheError").await?;
    let restarted = Timestamp::now();
    cluster.start_operator(&[])?;
    cluster.until_live(2).await?;
    until("the mark of generation 1", TIMEOUT, async || {
        let replaced = cluster.live_condition(1).await?;
        let is_new = replaced.last_transition_time.0.as_second() >= restarted.as_second();
        ensure!(replaced.status == "False" && is_new, "{replaced:?}");
        Ok(())
    })
    .await?;
    ensure!(cluster.revision(1).await?.spec.enabled);
    Ok(())
}
