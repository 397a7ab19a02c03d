//! Subscriptions that cannot be delivered: each has a condition that names the remedy.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use proviso_e2e::{until, until_after};
use serde_json::{Value, json};

use super::{Components, TEAM};
use crate::test_cluster::TIMEOUT;

#[tokio::test]
async fn config_maps_of_others_are_not_overwritten() -> Result<()> {
    let components = Components::start("subscriptions-conflicts").await?;
    components.apply_policy("memory-a", &json!({"content": {"min": 1}})).await?;
    let foreign = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "collector-policies"}, "data": {"key": "true"},
    });
    let params = PatchParams::apply("owner").force();
    components.config_maps().patch("collector-policies", &params, &Patch::Apply(foreign)).await?;
    components.subscribe("collector", "memory-.*", json!({})).await?;
    let message = components.until_condition("collector", "Delivered", "False", "ConfigMapConflict").await?;
    ensure!(message.contains("collector-policies") && message.contains("spec.delivery.configMap"), "{message}");
    let data = components.data("collector-policies").await?;
    ensure!(data.keys().eq(["key"]), "{data:?}");
    until("the Event", TIMEOUT, async || {
        let describe = ["describe", "-n", TEAM, "policysubscription", "collector"];
        let described = components.cluster.kubectl.run(&describe).await?;
        ensure!(described.contains("Warning  ConfigMapConflict"), "{described}");
        Ok(())
    })
    .await?;
    components.config_maps().delete("collector-policies", &DeleteParams::default()).await?;
    components.until_delivered("collector", &[("memory-a", 1)]).await?;

    // The second ConfigMap of the older subscription would have this name.
    let older = components.subscriptions().get("collector").await?;
    until_after(&older.metadata.creation_timestamp.context("its age")?).await?;
    let delivery = json!({"delivery": {"configMap": "collector-policies-1"}});
    components.subscribe("newer", "memory-.*", delivery).await?;
    let message = components.until_condition("newer", "Delivered", "False", "ConfigMapConflict").await?;
    ensure!(message.contains("the older subscription collector"), "{message}");
    ensure!(components.config_maps().get_opt("collector-policies-1").await?.is_none(), "it was written");
    components.subscriptions().delete("collector", &DeleteParams::default()).await?;
    components.until_delivered("newer", &[("memory-a", 1)]).await?;

    // Another name moves the policies.
    components.subscribe("newer", "memory-.*", json!({"delivery": {"configMap": "moved"}})).await?;
    until("the move", TIMEOUT, async || {
        let data = components.data("moved").await?;
        ensure!(data.contains_key("event") && data.contains_key("items.cluster.memory-a"), "{data:?}");
        let old = components.config_maps().get_opt("collector-policies-1").await?;
        ensure!(old.is_none(), "the old ConfigMap exists");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn selectors_and_names_that_cannot_work_are_reported() -> Result<()> {
    let components = Components::start("subscriptions-selectors").await?;
    components.apply_policy("memory-a", &json!({"content": {"min": 1}})).await?;
    components.subscribe("collector", "memory-.*", json!({})).await?;
    components.until_delivered("collector", &[("memory-a", 1)]).await?;
    components.apply_policy("memory-b", &json!({"content": {"min": 2}})).await?;
    components.until_delivered("collector", &[("memory-a", 1), ("memory-b", 1)]).await?;
    let unique = json!({"policies": [{"filter": {"configName": "memory", "unique": true}}]});
    components.subscribe("collector", "", unique).await?;
    let message = components.until_condition("collector", "Resolved", "False", "NotUnique").await?;
    ensure!(message.contains("spec.policies[0]") && message.contains("cluster.memory-b"), "{message}");
    // While a selector fails, nothing is removed.
    let status = components.status("collector").await?;
    ensure!(status.policies.len() == 2, "{status:?}");
    components.delete_policy("memory-b").await?;
    components.until_delivered("collector", &[("memory-a", 1)]).await?;
    components.until_condition("collector", "Resolved", "True", "Resolved").await?;

    components.subscribe("other", "memory-.*", json!({"scn": "collector"})).await?;
    let message = components.until_condition("other", "Delivered", "False", "ScnConflict").await?;
    ensure!(message.contains("the subscription collector") && message.contains("spec.scn"), "{message}");
    Ok(())
}

#[tokio::test]
async fn notifications_that_cannot_be_sent_are_reported() -> Result<()> {
    let components = Components::start("subscriptions-notify").await?;
    components.apply_policy("memory-a", &json!({"content": {"min": 1}})).await?;
    let delivery = |notify: Value| json!({"delivery": {"configMap": "collector-policies", "notify": notify}});
    let http = json!({"http": {"service": "collector", "port": 8080, "path": "/policies"}});
    components.subscribe("collector", "memory-.*", delivery(http.clone())).await?;
    let message = components.until_condition("collector", "Delivered", "False", "ServiceNotFound").await?;
    ensure!(message.contains("spec.delivery.notify.http.service"), "{message}");
    // The policies are stored before the notification, and no failed notification acknowledges them.
    let data = components.data("collector-policies").await?;
    ensure!(data.contains_key("items.cluster.memory-a"), "{data:?}");
    let status = components.status("collector").await?;
    ensure!(status.policies.is_empty() && status.unconfirmed == ["cluster.memory-a"], "{status:?}");
    ensure!(status.summary.as_deref() == Some("0/1") && status.pending.len() == 1, "{status:?}");

    let services = Api::<Service>::namespaced(components.cluster.client.clone(), TEAM);
    let external = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "collector"},
        "spec": {"type": "ExternalName", "externalName": "metadata.example.com", "ports": [{"port": 8080}]},
    });
    services.patch("collector", &PatchParams::apply("owner").force(), &Patch::Apply(external)).await?;
    let message = components.until_condition("collector", "Delivered", "False", "ServiceNotUsable").await?;
    ensure!(message.contains("ExternalName"), "{message}");

    // A command needs pods. Without its workload, the policies are stored.
    let exec = json!({"exec": {"command": ["/bin/reconfigure"]}});
    components.subscribe("collector", "memory-.*", delivery(exec.clone())).await?;
    components.until_condition("collector", "Delivered", "False", "CommandNotPossible").await?;
    let mut fields = delivery(exec);
    fields["component"] = json!({"kind": "StatefulSet", "name": "collector"});
    components.subscriptions().delete("collector", &DeleteParams::default()).await?;
    until("the end of the subscription", TIMEOUT, async || {
        let found = components.subscriptions().get_opt("collector").await?;
        ensure!(found.is_none(), "it exists");
        Ok(())
    })
    .await?;
    components.subscribe("collector", "memory-.*", fields).await?;
    let message = components.until_condition("collector", "Delivered", "False", "WorkloadNotFound").await?;
    ensure!(message.contains("there is no StatefulSet collector"), "{message}");
    until("the stored policies", TIMEOUT, async || {
        let status = components.status("collector").await?;
        ensure!(status.policies.len() == 1, "{status:?}");
        Ok(())
    })
    .await?;
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "collector", "namespace": TEAM},
        "spec": {
            "replicas": 0, "serviceName": "collector", "selector": {"matchLabels": {"app": "collector"}},
            "template": {
                "metadata": {"labels": {"app": "collector"}},
                "spec": {"containers": [{"name": "collector", "image": "registry.example.com/collector:1"}]},
            },
        },
    });
    let sets = components.cluster.dynamic("apps/v1", "StatefulSet", Some(TEAM));
    sets.patch("collector", &PatchParams::apply("owner").force(), &Patch::Apply(set)).await?;
    let message = components.until_condition("collector", "Delivered", "True", "Delivered").await?;
    ensure!(message.contains("no pod of the StatefulSet collector is Ready"), "{message}");
    let last = components.status("collector").await?.last_update.context("an update")?;
    ensure!(last.message.is_none(), "{last:?}");
    Ok(())
}
