//! What the operator asks of the API server, by its own metrics: the objects that it reconciles come from its caches, and it
//! writes what differs.

use anyhow::{Result, ensure};

use crate::stage::{Calls, POD, Stage};

const POLICIES: u64 = 5;

#[tokio::test]
async fn an_edit_and_a_replaced_pod_cost_few_writes_and_no_list() -> Result<()> {
    let stage = Stage::serving("operator-calls").await?;
    let names: Vec<_> = (0..POLICIES).map(|number| format!("p{number}")).collect();
    for name in &names {
        stage.live(name, "true").await?;
    }
    for name in &names {
        stage.until_active(name, 1).await?;
    }
    let before = stage.calls_at_rest().await?;
    stage.live("p0", "2 > 1").await?;
    stage.until_active("p0", 2).await?;
    let edited = stage.calls_at_rest().await?;
    let edit = edited - before;
    ensure!(edit.writes > 0 && edit.writes <= 8 && (edit.lists, edit.gets) == (0, 0), "an edit: {edit:?}");

    stage.replace_pod(POD).await?;
    for name in &names {
        stage.until_active(name, if name == "p0" { 2 } else { 1 }).await?;
    }
    let replaced = stage.calls_at_rest().await? - edited;
    let is_cheap = replaced.writes <= 2 * POLICIES && (replaced.lists, replaced.gets) == (0, 0);
    ensure!(is_cheap, "a replaced pod: {replaced:?}");
    let idle = stage.calls_at_rest().await? - (replaced + edited);
    ensure!(idle == Calls::default(), "idle: {idle:?}");

    let metrics = stage.metrics().await?;
    for line in [
        "proviso_operator_leader 1".to_owned(),
        format!("proviso_operator_policies{{kind=\"ClusterPolicy\",phase=\"Active\"}} {POLICIES}"),
        "proviso_operator_policies{kind=\"Policy\",phase=\"Active\"} 0".to_owned(),
    ] {
        ensure!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    ensure!(metrics.contains("proviso_operator_reconcile_duration_seconds_count{controller=\"clusterpolicies\"}"));
    Ok(())
}
