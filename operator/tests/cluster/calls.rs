//! What the operator asks of the API server, by its own metrics: the objects that it reconciles come from its caches, and it
//! writes what differs.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use proviso_crds::{ClusterPolicy, PolicyPhase, PolicyRevision};
use proviso_e2e::until;
use serde_json::json;

use crate::stage::{Calls, PATIENCE, POD, Stage};

const POLICIES: u64 = 5;

impl Stage {
    async fn until_active(&self, name: &str, generation: i64) -> Result<()> {
        until(&format!("{name} Active"), PATIENCE, async || {
            let policy = kube::Api::<ClusterPolicy>::all(self.client.clone()).get(name).await?;
            let status = policy.status.context("no status")?;
            ensure!(
                status.phase == Some(PolicyPhase::Active) && status.live_generation == Some(generation),
                "{status:?}"
            );
            Ok(())
        })
        .await
    }

    /// Replaces the pod, as a rolling restart does; every policy is loaded again.
    async fn replace_pod(&self) -> Result<()> {
        let pods = self.api::<Pod>();
        let old = pods.get(POD).await?.uid();
        pods.delete(POD, &DeleteParams::default()).await?;
        let uid = until("another pod", PATIENCE, async || {
            let uid = pods.get(POD).await?.uid();
            ensure!(uid != old, "the old one");
            Ok(uid)
        })
        .await?;
        let revisions = self.api::<PolicyRevision>();
        for revision in revisions.list(&kube::api::ListParams::default()).await?.items {
            let replica = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": {"replicas": [{
                "name": POD, "podUID": uid, "serverVersion": "0.1.0", "ready": "True", "reason": "Loaded",
                "lastTransitionTime": "2026-11-20T09:14:08Z",
            }]}});
            let how = kube::api::PatchParams::apply(POD).force();
            revisions.patch_status(&revision.name_any(), &how, &kube::api::Patch::Apply(replica)).await?;
        }
        self.ready(POD).await
    }
}

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

    stage.replace_pod().await?;
    for name in &names {
        stage.until_active(name, if name == "p0" { 2 } else { 1 }).await?;
    }
    let replaced = stage.calls_at_rest().await? - edited;
    // The pods themselves are the policy servers' controller's.
    ensure!(replaced.writes <= 2 * POLICIES, "a replaced pod: {replaced:?}");
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
