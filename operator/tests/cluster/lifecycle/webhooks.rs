//! The webhook of a policy: restored, left alone during break-glass, exempt from requests that a cluster needs, and
//! deleted in time.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use proviso_crds::PolicyPhase;
use proviso_crds::fixtures::{condition, replica};
use proviso_e2e::until;
use serde_json::{Value, json};

use super::{PolicyCluster, TEAM, spec};
use crate::test_cluster::{NAMESPACE, TIMEOUT};

#[tokio::test]
async fn a_webhook_that_was_changed_or_deleted_by_hand_is_restored() -> Result<()> {
    let cluster = PolicyCluster::start("operator-by-hand").await?;
    cluster.write(&spec("true")).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    let webhooks = cluster.webhooks();
    let name = "proviso-ns.team.labels";
    let change = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
    let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
    webhooks.patch(name, &PatchParams::default(), &change).await?;
    until("the failure policy", TIMEOUT, async || {
        let webhook = webhooks.get(name).await?.webhooks.context("webhooks")?.remove(0);
        ensure!(webhook.failure_policy.as_deref() == Some("Fail"), "{webhook:?}");
        Ok(())
    })
    .await?;
    webhooks.delete(name, &DeleteParams::default()).await?;
    cluster.until_live(1).await?;
    // The webhook is also restored while a newer generation fails, and when its path no longer names the live
    // generation.
    cluster.write(&spec("2 > 1")).await?;
    cluster.report_initialized(2, "False", "CompileError", "").await?;
    cluster.until_phase(PolicyPhase::Failed).await?;
    webhooks.delete(name, &DeleteParams::default()).await?;
    cluster.until_live(1).await?;
    let change = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/nowhere"}]);
    let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
    webhooks.patch(name, &PatchParams::default(), &change).await?;
    cluster.until_live(1).await
}

#[tokio::test]
async fn break_glass_stops_webhook_reconciliation() -> Result<()> {
    let cluster = PolicyCluster::start("operator-break-glass").await?;
    cluster.write(&spec("true")).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    let webhooks = cluster.webhooks();
    let name = "proviso-ns.team.labels";
    let object = format!("validatingwebhookconfiguration/{name}");
    let change = async |operations: Value| -> Result<()> {
        let change: Patch<()> = Patch::Json(serde_json::from_value(operations)?);
        webhooks.patch(name, &PatchParams::default(), &change).await?;
        Ok(())
    };
    let break_glass = async || {
        let annotation = "proviso.dev/break-glass=INC-17 pods do not start";
        cluster.kubectl.run(&["annotate", &object, annotation]).await
    };
    let until_break_glass_reported = async |generation: i64| {
        until(&format!("the status of generation {generation}"), TIMEOUT, async || {
            let conditions = cluster.status().await?.conditions;
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
    until_break_glass_reported(1).await?;
    change(json!([{"op": "replace", "path": "/webhooks/0/rules", "value": []}])).await?;
    let left = webhooks.get(name).await?;
    // All replicas serve another generation, and the status reports that the webhook does not move to it.
    cluster.write(&spec("2 > 1")).await?;
    cluster.serve(2).await?;
    until_break_glass_reported(2).await?;
    let status = cluster.status().await?;
    ensure!(status.live_generation == Some(1) && status.phase == Some(PolicyPhase::Updating), "{status:?}");
    ensure!(webhooks.get(name).await? == left, "the operator has changed the webhook");
    ensure!(cluster.revision(1).await?.spec.enabled);
    until("the event", TIMEOUT, async || {
        let described = cluster.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("Warning  BreakGlass"), "{described}");
        Ok(())
    })
    .await?;
    // A deleted configuration has no annotation, so break-glass ends.
    webhooks.delete(name, &DeleteParams::default()).await?;
    cluster.until_live(2).await?;
    until("the Event about the end of break-glass", TIMEOUT, async || {
        let described = cluster.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("BreakGlassEnded"), "{described}");
        Ok(())
    })
    .await?;
    // The configuration is restored when the annotation is removed.
    break_glass().await?;
    until_break_glass_reported(2).await?;
    change(json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}])).await?;
    cluster.permit_mutation().await?;
    let mut mutating = spec("3 > 2");
    mutating["admission"]["mutating"] = json!(true);
    cluster.write(&mutating).await?;
    cluster.serve(3).await?;
    until_break_glass_reported(3).await?;
    ensure!(cluster.paths().await? == (Some("/validate/ns.team.labels/2".to_owned()), None));
    ensure!(webhooks.get(name).await?.webhooks.context("webhooks")?[0].failure_policy.as_deref() == Some("Ignore"));
    cluster.write(&spec("4 > 3")).await?;
    cluster.serve(4).await?;
    until_break_glass_reported(4).await?;
    cluster.kubectl.run(&["annotate", &object, "proviso.dev/break-glass-"]).await?;
    cluster.until_live(4).await?;
    ensure!(webhooks.get(name).await?.webhooks.context("webhooks")?[0].failure_policy.as_deref() == Some("Fail"));
    // The configuration is deleted with its policy, even during break-glass.
    break_glass().await?;
    until_break_glass_reported(4).await?;
    cluster.policies().delete("labels", &DeleteParams::default()).await?;
    until("the webhook to go", TIMEOUT, async || {
        ensure!(cluster.paths().await? == (None, None));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_cluster_without_policy_servers_can_still_start() -> Result<()> {
    let cluster = PolicyCluster::start("operator-exemptions").await?;
    cluster.kubectl.run(&["create", "namespace", "other"]).await?;
    let mut everything = spec("true");
    everything["admission"]["rules"] = json!([
        {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources":
            ["configmaps", "leases", "namespaces", "selfsubjectaccessreviews", "tokenreviews"]},
    ]);
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "all"}, "spec": everything,
    });
    let file = cluster.plane.folder().path().join("all.json");
    std::fs::write(&file, policy.to_string())?;
    cluster.kubectl.run(&["create", "-f", file.to_str().unwrap()]).await?;
    let name = "cluster.all-1";
    let revision = until(name, TIMEOUT, async || Ok(cluster.revisions().get(name).await?)).await?;
    let condition = condition("Initialized", "True", "Prepared", "", 1);
    cluster.apply_revision_status(&revision, "proviso-leader", json!({"conditions": [condition]})).await?;
    let pods = cluster.api::<Pod>().list(&ListParams::default()).await?;
    for pod in pods {
        let replica = replica(&pod.name_any(), &pod.uid().unwrap_or_default(), "True", "Loaded");
        cluster.apply_revision_status(&revision, &pod.name_any(), json!({"replicas": [replica]})).await?;
    }
    // No policy server answers the webhook.
    let create = async |arguments: &[&str]| {
        cluster
            .kubectl
            .run(&[&["create", "--dry-run=server"], arguments].concat())
            .await
            .map_err(|error| format!("{error:#}"))
    };
    until("a call of the webhook", TIMEOUT, async || {
        let refused = create(&["configmap", "a", "--namespace=other"]).await;
        ensure!(refused.as_ref().is_err_and(|error| error.contains("failed calling webhook")), "{refused:?}");
        Ok(())
    })
    .await?;
    // A cluster-scoped object is not exempt.
    let refused = create(&["namespace", "another"]).await;
    ensure!(refused.as_ref().is_err_and(|error| error.contains("failed calling webhook")), "{refused:?}");
    // Proviso's own namespace is exempt, and so are the leases of nodes and of Kubernetes components.
    let own = create(&["configmap", "a", "--namespace", NAMESPACE]).await;
    ensure!(own.is_ok(), "{own:?}");
    for (namespace, passes) in [("kube-system", true), ("kube-node-lease", true), ("other", false)] {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a", "namespace": namespace}});
        std::fs::write(&file, lease.to_string())?;
        let created = create(&["-f", file.to_str().unwrap()]).await;
        ensure!(created.is_ok() == passes, "{namespace}: {created:?}");
    }
    // A wildcard covers no reviews of credentials and permissions.
    cluster.kubectl.run(&["auth", "can-i", "get", "pods"]).await?;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "none"}});
    std::fs::write(&file, review.to_string())?;
    cluster.kubectl.run(&["create", "-f", file.to_str().unwrap()]).await?;
    Ok(())
}

#[tokio::test]
async fn a_policy_turns_mutating_and_back_with_both_webhooks_for_a_while() -> Result<()> {
    let cluster = PolicyCluster::start_with("operator-mutating", &["--retire-after=10s"]).await?;
    let path = |generation: i64| Some(format!("/validate/ns.{TEAM}.labels/{generation}"));
    let until_paths = async |expected: (Option<String>, Option<String>)| {
        until(&format!("the webhooks at {expected:?}"), TIMEOUT, async || {
            let paths = cluster.paths().await?;
            ensure!(paths == expected, "{paths:?}");
            Ok(())
        })
        .await
    };
    cluster.write(&spec("true")).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    cluster.permit_mutation().await?;
    let mut mutating = spec("true");
    mutating["admission"]["mutating"] = json!(true);
    cluster.write(&mutating).await?;
    cluster.serve(2).await?;
    until_paths((path(1), path(2))).await?;
    until_paths((None, path(2))).await?;
    // The grace period of the old generation begins with the end of its webhook.
    until("the mark of generation 1", TIMEOUT, async || {
        let live = cluster.live_condition(1).await?;
        ensure!(live.status == "False", "{live:?}");
        Ok(())
    })
    .await?;
    ensure!(cluster.revision(1).await?.spec.enabled, "generation 1 was unloaded with its webhook");
    cluster.write(&spec("2 > 1")).await?;
    cluster.serve(3).await?;
    until_paths((path(3), path(2))).await?;
    cluster.until_live(3).await
}

#[tokio::test]
async fn disabled_and_deleted_policies_leave_no_webhook() -> Result<()> {
    let cluster = PolicyCluster::start("operator-delete").await?;
    cluster.write(&spec("true")).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    let mut disabled = spec("true");
    disabled["enabled"] = json!(false);
    cluster.write(&disabled).await?;
    cluster.until_phase(PolicyPhase::Disabled).await?;
    ensure!(cluster.paths().await? == (None, None));
    // The enabled policy is rolled out like any other generation.
    cluster.write(&spec("true")).await?;
    cluster.serve(3).await?;
    cluster.until_live(3).await?;
    cluster.policies().delete("labels", &DeleteParams::default()).await?;
    until("the webhook to go", TIMEOUT, async || {
        ensure!(cluster.paths().await? == (None, None));
        Ok(())
    })
    .await?;
    // The revisions still answer for a while after the webhook was deleted.
    ensure!(cluster.revision(3).await?.spec.enabled);
    until("everything to go", TIMEOUT, async || {
        let left = cluster.revisions().list(&ListParams::default()).await?.items.len();
        ensure!(left == 0 && cluster.policies().get_opt("labels").await?.is_none(), "{left} revisions are left");
        Ok(())
    })
    .await
}
