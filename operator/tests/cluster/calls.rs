//! The requests of the operator to the API server, by its own metrics: reconciles read caches, and write only what
//! differs.

use anyhow::{Result, ensure};

use crate::test_cluster::{Calls, POD, TestCluster};

const POLICIES: u64 = 5;

#[tokio::test]
async fn an_edit_and_a_replaced_pod_cost_few_writes_and_no_list() -> Result<()> {
    let cluster = TestCluster::with_policy_server("operator-calls").await?;
    let names: Vec<_> = (0..POLICIES).map(|number| format!("p{number}")).collect();
    for name in &names {
        cluster.make_live(name, "true").await?;
    }
    for name in &names {
        cluster.until_active(name, 1).await?;
    }
    let before = cluster.calls_when_idle().await?;
    cluster.make_live("p0", "2 > 1").await?;
    cluster.until_active("p0", 2).await?;
    let edited = cluster.calls_when_idle().await?;
    let edit = edited - before;
    // The revision, its conditions when it waits and when it is live, the webhook, the end of the old revision, and up to four steps of the
    // status: fewer if the operator sees several steps at once.
    ensure!(edit.writes > 0 && edit.writes <= 9 && (edit.lists, edit.gets) == (0, 0), "an edit: {edit:?}");

    cluster.replace_pod(POD).await?;
    for name in &names {
        cluster.until_active(name, if name == "p0" { 2 } else { 1 }).await?;
    }
    let replaced = cluster.calls_when_idle().await? - edited;
    let is_cheap = replaced.writes <= 2 * POLICIES && (replaced.lists, replaced.gets) == (0, 0);
    ensure!(is_cheap, "a replaced pod: {replaced:?}");
    let idle = cluster.calls_when_idle().await? - (replaced + edited);
    ensure!(idle == Calls::default(), "idle: {idle:?}");

    let metrics = cluster.metrics().await?;
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
