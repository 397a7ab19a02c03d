//! The webhook of a policy: kept up, left alone where the glass was broken, exempt from what a cluster needs, and gone in time.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use proviso_crds::PolicyPhase;
use proviso_crds::fixtures::{condition, replica};
use proviso_e2e::until;
use serde_json::{Value, json};

use super::{Stage, TEAM, spec};
use crate::stage::{NAMESPACE, PATIENCE};

#[tokio::test]
async fn a_webhook_that_was_changed_or_deleted_by_hand_is_restored() -> Result<()> {
    let stage = Stage::start("operator-by-hand").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let webhooks = stage.webhooks();
    let name = "proviso-ns.team.labels";
    let change = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
    let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
    webhooks.patch(name, &PatchParams::default(), &change).await?;
    until("the failure policy", PATIENCE, async || {
        let webhook = webhooks.get(name).await?.webhooks.context("webhooks")?.remove(0);
        ensure!(webhook.failure_policy.as_deref() == Some("Fail"), "{webhook:?}");
        Ok(())
    })
    .await?;
    webhooks.delete(name, &DeleteParams::default()).await?;
    stage.until_live(1).await?;
    // Also while a newer generation does not work, and what the webhook asked cannot be read from it any more.
    stage.write(&spec("2 > 1")).await?;
    stage.initialized(2, "False", "CompileError", "").await?;
    stage.until_phase(PolicyPhase::Failed).await?;
    webhooks.delete(name, &DeleteParams::default()).await?;
    stage.until_live(1).await?;
    let change = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/nowhere"}]);
    let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
    webhooks.patch(name, &PatchParams::default(), &change).await?;
    stage.until_live(1).await
}

#[tokio::test]
async fn a_webhook_whose_glass_was_broken_is_nobodys_but_theirs_who_broke_it() -> Result<()> {
    let stage = Stage::start("operator-break-glass").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let webhooks = stage.webhooks();
    let name = "proviso-ns.team.labels";
    let object = format!("validatingwebhookconfiguration/{name}");
    let change = async |operations: Value| -> Result<()> {
        let change: Patch<()> = Patch::Json(serde_json::from_value(operations)?);
        webhooks.patch(name, &PatchParams::default(), &change).await?;
        Ok(())
    };
    let break_glass = async || {
        let annotation = "proviso.dev/break-glass=INC-17 pods do not start";
        stage.kubectl.run(&["annotate", &object, annotation]).await
    };
    let until_told = async |generation: i64| {
        until(&format!("the status of generation {generation}"), PATIENCE, async || {
            let conditions = stage.status().await?.conditions;
            let live = conditions.iter().find(|it| it.type_ == "Live").context("Live")?;
            ensure!(live.reason == "BreakGlass" && live.status == "Unknown", "{live:?}");
            ensure!(live.observed_generation == Some(generation), "{live:?}");
            let remedy = format!("kubectl annotate {object} proviso.dev/break-glass-");
            ensure!(live.message.contains("INC-17 pods do not start") && live.message.ends_with(&remedy), "{live:?}");
            let ready = conditions.iter().find(|it| it.type_ == "Ready").context("Ready")?;
            ensure!(ready.status == "True", "{ready:?}");
            Ok(())
        })
        .await
    };
    break_glass().await?;
    until_told(1).await?;
    change(json!([{"op": "replace", "path": "/webhooks/0/rules", "value": []}])).await?;
    let left = webhooks.get(name).await?;
    // All replicas serve another generation, and it is told that the webhook does not move for it.
    stage.write(&spec("2 > 1")).await?;
    stage.serve(2).await?;
    until_told(2).await?;
    let status = stage.status().await?;
    ensure!(status.live_generation == Some(1) && status.phase == Some(PolicyPhase::Updating), "{status:?}");
    ensure!(webhooks.get(name).await? == left, "somebody has touched it");
    ensure!(stage.revision(1).await?.spec.enabled);
    until("the event", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("Warning  BreakGlass"), "{described}");
        Ok(())
    })
    .await?;
    // A configuration that is deleted cannot say that it is to be left alone.
    webhooks.delete(name, &DeleteParams::default()).await?;
    stage.until_live(2).await?;
    until("the end to be told", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("BreakGlassEnded"), "{described}");
        Ok(())
    })
    .await?;
    // Without the annotation it is restored.
    break_glass().await?;
    until_told(2).await?;
    change(json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}])).await?;
    let mut mutating = spec("3 > 2");
    mutating["admission"]["mutating"] = json!(true);
    stage.write(&mutating).await?;
    stage.serve(3).await?;
    until_told(3).await?;
    ensure!(stage.paths().await? == (Some("/validate/ns.team.labels/2".to_owned()), None));
    ensure!(webhooks.get(name).await?.webhooks.context("webhooks")?[0].failure_policy.as_deref() == Some("Ignore"));
    stage.write(&spec("4 > 3")).await?;
    stage.serve(4).await?;
    until_told(4).await?;
    stage.kubectl.run(&["annotate", &object, "proviso.dev/break-glass-"]).await?;
    stage.until_live(4).await?;
    ensure!(webhooks.get(name).await?.webhooks.context("webhooks")?[0].failure_policy.as_deref() == Some("Fail"));
    // It goes with its policy, whoever holds it.
    break_glass().await?;
    until_told(4).await?;
    stage.policies().delete("labels", &DeleteParams::default()).await?;
    until("the webhook to go", PATIENCE, async || {
        ensure!(stage.paths().await? == (None, None));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn without_any_policy_server_a_cluster_can_still_start() -> Result<()> {
    let stage = Stage::start("operator-exemptions").await?;
    stage.kubectl.run(&["create", "namespace", "other"]).await?;
    let mut everything = spec("true");
    everything["admission"]["rules"] = json!([
        {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps", "leases", "namespaces"]},
    ]);
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "all"}, "spec": everything,
    });
    let file = stage.plane.folder().path().join("all.json");
    std::fs::write(&file, policy.to_string())?;
    stage.kubectl.run(&["create", "-f", file.to_str().unwrap()]).await?;
    let name = "cluster.all-1";
    let revision = until(name, PATIENCE, async || Ok(stage.revisions().get(name).await?)).await?;
    let condition = condition("Initialized", "True", "Prepared", "", 1);
    stage.say(&revision, "proviso-leader", json!({"conditions": [condition]})).await?;
    let pods = stage.api::<Pod>().list(&ListParams::default()).await?;
    for pod in pods {
        let replica = replica(&pod.name_any(), &pod.uid().unwrap_or_default(), "True", "Loaded");
        stage.say(&revision, &pod.name_any(), json!({"replicas": [replica]})).await?;
    }
    // Nobody answers the webhook.
    let create = async |what: &[&str]| {
        stage.kubectl.run(&[&["create", "--dry-run=server"], what].concat()).await.map_err(|error| format!("{error:#}"))
    };
    until("the webhook to be asked", PATIENCE, async || {
        let refused = create(&["configmap", "a", "--namespace=other"]).await;
        ensure!(refused.as_ref().is_err_and(|said| said.contains("failed calling webhook")), "{refused:?}");
        Ok(())
    })
    .await?;
    // An object without a namespace is decided like the rest.
    let refused = create(&["namespace", "another"]).await;
    ensure!(refused.as_ref().is_err_and(|said| said.contains("failed calling webhook")), "{refused:?}");
    // But not what Proviso consists of, and the leases by which nodes and components say that they live.
    let own = create(&["configmap", "a", "--namespace", NAMESPACE]).await;
    ensure!(own.is_ok(), "{own:?}");
    for (namespace, passes) in [("kube-system", true), ("kube-node-lease", true), ("other", false)] {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a", "namespace": namespace}});
        std::fs::write(&file, lease.to_string())?;
        let created = create(&["-f", file.to_str().unwrap()]).await;
        ensure!(created.is_ok() == passes, "{namespace}: {created:?}");
    }
    Ok(())
}

#[tokio::test]
async fn validating_turns_into_mutating_and_back_without_an_orphan() -> Result<()> {
    let stage = Stage::start("operator-mutating").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let mut mutating = spec("true");
    mutating["admission"]["mutating"] = json!(true);
    stage.write(&mutating).await?;
    stage.serve(2).await?;
    until("the mutating webhook alone", PATIENCE, async || {
        let paths = stage.paths().await?;
        ensure!(paths == (None, Some("/validate/ns.team.labels/2".to_owned())), "{paths:?}");
        Ok(())
    })
    .await?;
    stage.write(&spec("2 > 1")).await?;
    stage.serve(3).await?;
    stage.until_live(3).await
}

#[tokio::test]
async fn disabled_and_deleted_policies_leave_no_webhook() -> Result<()> {
    let stage = Stage::start("operator-delete").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let mut disabled = spec("true");
    disabled["enabled"] = json!(false);
    stage.write(&disabled).await?;
    stage.until_phase(PolicyPhase::Disabled).await?;
    ensure!(stage.paths().await? == (None, None));
    // On again: a generation as any other.
    stage.write(&spec("true")).await?;
    stage.serve(3).await?;
    stage.until_live(3).await?;
    stage.policies().delete("labels", &DeleteParams::default()).await?;
    until("the webhook to go", PATIENCE, async || {
        ensure!(stage.paths().await? == (None, None));
        Ok(())
    })
    .await?;
    // The revisions answer a little longer than the webhook asks.
    ensure!(stage.revision(3).await?.spec.enabled);
    until("everything to go", PATIENCE, async || {
        let left = stage.revisions().list(&ListParams::default()).await?.items.len();
        ensure!(left == 0 && stage.policies().get_opt("labels").await?.is_none(), "{left} revisions are left");
        Ok(())
    })
    .await
}
