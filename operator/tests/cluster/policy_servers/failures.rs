//! Objects of a policy server that the API server refuses, and replicas whose nodes are lost.

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, ResourceQuota};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{TIMEOUT, TestCluster};

/// Returns the image in the pod template.
fn image(stateful_set: StatefulSet) -> Option<String> {
    stateful_set.spec?.template.spec?.containers.pop()?.image
}

impl TestCluster {
    /// Waits until an Event of the policy server `default` has this reason and names this object.
    async fn until_event(&self, reason: &str, object: &str) -> Result<()> {
        until(&format!("an Event {reason} about {object}"), TIMEOUT, async || {
            let described = self.kubectl.run(&["describe", "pvs", "default"]).await?;
            let (_, events) = described.split_once("Events:").context("no Events")?;
            ensure!(events.lines().any(|line| line.contains(reason) && line.contains(object)), "{events}");
            Ok(())
        })
        .await
    }

    /// Creates a node whose kubelet has reported this status of the condition `Ready`.
    async fn create_node(&self, name: &str, ready: &str) -> Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        nodes.create(&PostParams::default(), &node).await?;
        let now = Timestamp::now().to_string();
        let condition = json!({
            "type": "Ready", "status": ready, "reason": "Test", "lastHeartbeatTime": now, "lastTransitionTime": now,
        });
        let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        nodes.patch_status(name, &PatchParams::default(), &status).await?;
        Ok(())
    }

    /// Binds a pod to a node, as a scheduler would, and deletes the pod. Returns its uid. Without a kubelet, the
    /// deletion does not end.
    async fn delete_pod_on(&self, node: &str, pod: &str) -> Result<String> {
        let pods = self.api::<Pod>();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let _: Value = pods.create_subresource("binding", pod, &PostParams::default(), &binding).await?;
        let soon = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
        pods.delete(pod, &soon).await?;
        let deleted = pods.get(pod).await?;
        ensure!(deleted.metadata.deletion_timestamp.is_some(), "{deleted:?}");
        deleted.uid().context("its uid")
    }
}

#[tokio::test]
async fn a_refused_change_of_the_claim_is_reported_and_does_not_stop_other_changes() -> Result<()> {
    let cluster = TestCluster::started("servers-refused-claim").await?;
    let next = "registry.example.com/policy-server:2";
    let claim = |size: &str| json!({"persistentVolumeClaim": {"size": size}});
    cluster.apply_server("default", json!({"cache": claim("1Gi")})).await?;
    cluster.until_pods("default", &["policy-server-default-0"]).await?;
    let before = cluster.stateful_set().await?.uid();

    // The claim is not bound to a volume, so it is immutable.
    cluster.apply_server("default", json!({"cache": claim("2Gi"), "image": next, "maxUnavailable": 2})).await?;
    let message = cluster.until_condition("default", "Ready", "False", "ApplyFailed").await?;
    ensure!(message.contains("PersistentVolumeClaim policy-server-default-cache: "), "{message}");
    ensure!(message.contains("immutable") && message.contains("replicas are Ready"), "{message}");
    cluster.until_event("ApplyFailed", "policy-server-default-cache").await?;
    until("the other changes", TIMEOUT, async || {
        ensure!(image(cluster.stateful_set().await?).as_deref() == Some(next), "the image is the old one");
        let budget = cluster.api::<PodDisruptionBudget>().get("policy-server-default").await?.spec.context("spec")?;
        ensure!(budget.max_unavailable == Some(IntOrString::Int(2)), "{budget:?}");
        Ok(())
    })
    .await?;

    // The operator recovers when the change is undone.
    cluster.apply_server("default", json!({"cache": claim("1Gi"), "image": next, "maxUnavailable": 2})).await?;
    cluster.until_condition("default", "Ready", "False", "ReplicasNotReady").await?;
    cluster.until_pods("default", &["policy-server-default-0"]).await?;
    ensure!(image(cluster.stateful_set().await?).as_deref() == Some(next), "the image is the old one again");
    ensure!(cluster.stateful_set().await?.uid() == before, "another StatefulSet");
    Ok(())
}

#[tokio::test]
async fn running_replicas_keep_their_template_while_the_quota_refuses_a_new_claim() -> Result<()> {
    let cluster = TestCluster::started("servers-refused-quota").await?;
    cluster.apply_server("default", json!({})).await?;
    cluster.until_pods("default", &["policy-server-default-0"]).await?;
    let template = async || anyhow::Ok(cluster.stateful_set().await?.spec.context("spec")?.template);
    let before = template().await?;

    let quotas = cluster.api::<ResourceQuota>();
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    until("the quota", 4 * TIMEOUT, async || {
        let status = quotas.get("none").await?.status.unwrap_or_default();
        ensure!(status.hard.is_some_and(|hard| !hard.is_empty()), "not counted yet");
        Ok(())
    })
    .await?;
    let claim = json!({"cache": {"persistentVolumeClaim": {"size": "1Gi"}}, "maxUnavailable": 2});
    cluster.apply_server("default", claim).await?;
    let message = cluster.until_condition("default", "Ready", "False", "ApplyFailed").await?;
    ensure!(message.contains("exceeded quota: none"), "{message}");
    // A pod with the claim could not start.
    ensure!(template().await? == before, "the pod template has changed");
    let budget = cluster.api::<PodDisruptionBudget>().get("policy-server-default").await?.spec.context("spec")?;
    ensure!(budget.max_unavailable == Some(IntOrString::Int(2)), "{budget:?}");

    quotas.delete("none", &DeleteParams::default()).await?;
    // The delay between two attempts grows to a minute.
    until("the claim and the template", 4 * TIMEOUT, async || {
        cluster.api::<PersistentVolumeClaim>().get("policy-server-default-cache").await?;
        ensure!(template().await? != before, "still the old template");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_replica_of_a_lost_node_is_replaced_and_one_of_a_ready_node_is_not() -> Result<()> {
    let cluster = TestCluster::started("servers-lost-node").await?;
    cluster.apply_server("default", json!({"replicas": 2})).await?;
    let names = ["policy-server-default-0", "policy-server-default-1"];
    cluster.until_pods("default", &names).await?;
    cluster.create_node("healthy", "True").await?;
    cluster.create_node("lost", "Unknown").await?;
    // The operator checks the pods in the order of their names: when it has replaced the second, it has kept the first.
    let on_healthy = cluster.delete_pod_on("healthy", names[0]).await?;
    let on_lost = cluster.delete_pod_on("lost", names[1]).await?;
    let pods = cluster.api::<Pod>();
    until("another replica", TIMEOUT, async || {
        let pod = pods.get(names[1]).await?;
        ensure!(pod.uid().as_ref() != Some(&on_lost) && pod.metadata.deletion_timestamp.is_none(), "{pod:?}");
        Ok(())
    })
    .await?;
    let kept = pods.get(names[0]).await?;
    ensure!(kept.uid() == Some(on_healthy) && kept.metadata.deletion_timestamp.is_some(), "{kept:?}");
    cluster.until_event("LostPodDeleted", names[1]).await?;
    let described = cluster.kubectl.run(&["describe", "pvs", "default"]).await?;
    let is_kept = described.lines().all(|line| !(line.contains("LostPodDeleted") && line.contains(names[0])));
    ensure!(is_kept, "{described}");
    Ok(())
}
