//! The delivery of configuration policies to a component in pods: the sample component of `examples/configuration`.

mod component;

use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use proviso_crds::UpdateResult;
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{NAMESPACE, OPERATORS, TestCluster, WAIT_TIMEOUT, is_ready};
use component::{Component, exec, http};

/// The Deployment of the operators, and the name of their webhook configuration.
const OPERATOR: &str = "proviso-operator";
/// The number of operators of the chart.
const OPERATOR_REPLICAS: usize = 2;

/// Returns the spec of a policy with this content. Filters find it by the attribute `flow`.
fn content(flow: &str, content: &Value) -> Value {
    json!({"configuration": {"configName": "memory", "attributes": {"flow": flow}, "content": content}})
}

/// Returns the selectors of a subscription for one policy, and for all policies of a flow.
fn selectors(id: &str, flow: &str) -> Value {
    json!([{"id": id}, {"filter": {"attributes": {"flow": flow}}}])
}

pub async fn a_component_gets_installs_updates_removals_and_rejections(cluster: &TestCluster) -> Result<()> {
    const FLOW: &str = "lifecycle";
    let id = |name: &str| format!("cluster.lifecycle-{name}");
    // The policies exist before the component starts, so it reads them when it starts.
    let memory = cluster.write("lifecycle-memory", &content(FLOW, &json!({"min_memory": 256}))).await?;
    cluster.until_live("lifecycle-memory", memory).await?;
    let template = json!({"cel": r#"{"name": component.name, "level": params.level}"#});
    let level = json!({"configuration": {"configName": "level", "template": template}, "settings": {"level": "info"}});
    let generation = cluster.write("lifecycle-level", &level).await?;
    cluster.until_live("lifecycle-level", generation).await?;
    let component = Component::new(cluster, FLOW).await?;
    component.deploy(0).await?;
    component.subscribe("collector", selectors(&id("level"), FLOW), exec("reconfigure", 10)).await?;
    component.until_delivered("collector", 2).await?;
    component.start().await?;
    let level = json!({"name": "component", "level": "info"});
    component.until_configured(&json!({id("memory"): {"min_memory": 256}, id("level"): level})).await?;
    let event = component.event("collector").await?;
    ensure!(event["policies_count"] == 2, "{event}");
    let body = component.stored_body("collector", &id("memory")).await?;
    ensure!(body["policyName"] == format!("{}.{memory}.xml", id("memory")), "{body}");

    // An update.
    cluster.write("lifecycle-memory", &content(FLOW, &json!({"min_memory": 512}))).await?;
    component.until_configured(&json!({id("memory"): {"min_memory": 512}, id("level"): level})).await?;
    component.until_delivered("collector", 2).await?;
    let event = component.event("collector").await?;
    ensure!(event["action"] == "updated" && event["policies_count"] == 2, "{event}");

    // A new policy that the filter selects.
    cluster.write("lifecycle-rate", &content(FLOW, &json!({"rate": 1}))).await?;
    let with_rate = json!({id("memory"): {"min_memory": 512}, id("level"): level, id("rate"): {"rate": 1}});
    component.until_configured(&with_rate).await?;
    // The removal of a policy, and the same policy again with the same content.
    cluster.delete("lifecycle-rate").await?;
    component.until_configured(&json!({id("memory"): {"min_memory": 512}, id("level"): level})).await?;
    cluster.write("lifecycle-rate", &content(FLOW, &json!({"rate": 1}))).await?;
    component.until_configured(&with_rate).await?;
    // The filter does not select the policy any more.
    cluster.write("lifecycle-rate", &content("other", &json!({"rate": 1}))).await?;
    component.until_configured(&json!({id("memory"): {"min_memory": 512}, id("level"): level})).await?;
    component.until_delivered("collector", 2).await?;

    // A rejection: the component keeps the last good body, also after a restart.
    let good = component.stored_body("collector", &id("memory")).await?;
    let refused = cluster.write("lifecycle-memory", &content(FLOW, &json!({"min_memory": 4096}))).await?;
    let message = component.until_condition("collector", "False", "Rejected").await?;
    ensure!(message.contains(&id("memory")) && message.contains("min_memory is 4096"), "{message}");
    let status = component.status("collector").await?;
    let rejected = status.rejected.first().context("no rejection in the status")?;
    ensure!(rejected.id == id("memory") && rejected.version == Some(refused.to_string()), "{rejected:?}");
    ensure!(rejected.message.contains("at most 1024 are possible"), "{rejected:?}");
    until("the last good body in the ConfigMap", WAIT_TIMEOUT, async || {
        let stored = component.stored_body("collector", &id("memory")).await?;
        ensure!(stored == good, "{stored}");
        Ok(())
    })
    .await?;
    component.restart().await?;
    component.until_configured(&json!({id("memory"): {"min_memory": 512}, id("level"): level})).await?;

    // Another policy is delivered in spite of the rejection, and a rollback ends it.
    cluster.write("lifecycle-rate", &content(FLOW, &json!({"rate": 2}))).await?;
    component
        .until_configured(&json!({id("memory"): {"min_memory": 512}, id("level"): level, id("rate"): {"rate": 2}}))
        .await?;
    let output = cluster.proviso(&["rollback", "cluster.lifecycle-memory", "--to", "2"]).await?;
    ensure!(output.contains("configures components, with the spec of generation 2"), "{output}");
    component.until_delivered("collector", 3).await?;
    let output = cluster.proviso(&["subscriptions", "status", "collector", "-n", &component.namespace]).await?;
    ensure!(output.contains("flow-lifecycle/collector  Delivered"), "{output}");
    for name in ["lifecycle-memory", "lifecycle-level", "lifecycle-rate"] {
        cluster.delete(name).await?;
    }
    component.until_configured(&json!({})).await?;
    component.end().await
}

pub async fn a_component_is_notified_by_http(cluster: &TestCluster) -> Result<()> {
    const FLOW: &str = "http";
    let component = Component::new(cluster, FLOW).await?;
    component.start().await?;
    component.subscribe("gateway", json!([{"filter": {"attributes": {"flow": FLOW}}}]), http("/policies")).await?;
    component.until_delivered("gateway", 0).await?;
    cluster.write("http-memory", &content(FLOW, &json!({"min_memory": 128}))).await?;
    component.until_configured(&json!({"cluster.http-memory": {"min_memory": 128}})).await?;
    component.until_delivered("gateway", 1).await?;
    cluster.write("http-memory", &content(FLOW, &json!({"min_memory": 2048}))).await?;
    let message = component.until_condition("gateway", "False", "Rejected").await?;
    ensure!(message.contains("cluster.http-memory") && message.contains("at most 1024"), "{message}");
    component.until_configured(&json!({"cluster.http-memory": {"min_memory": 128}})).await?;
    // The component accepts the policy after its repair, and a resend.
    component.set_limit(4096).await?;
    let output = cluster.proviso(&["subscriptions", "resend", "gateway", "-n", &component.namespace]).await?;
    ensure!(output.contains("the component has all its policies (1/1)"), "{output}");
    component.until_configured(&json!({"cluster.http-memory": {"min_memory": 2048}})).await?;
    cluster.delete("http-memory").await?;
    component.end().await
}

pub async fn bad_subscriptions_have_conditions_and_delay_no_other(cluster: &TestCluster) -> Result<()> {
    const FLOW: &str = "bad";
    let component = Component::new(cluster, FLOW).await?;
    component.start().await?;
    let selector = || json!([{"filter": {"attributes": {"flow": FLOW}}}]);
    let mut missing = exec("reconfigure", 10);
    missing["exec"]["container"] = "absent".into();
    component.subscribe("hangs", selector(), exec("hang", 1)).await?;
    component.subscribe("missing", selector(), missing).await?;
    component.subscribe("works", selector(), exec("reconfigure", 10)).await?;
    component.until_delivered("works", 0).await?;
    component.until_older("works").await?;
    component.subscribe_to("second", "works-policies", selector(), exec("reconfigure", 10)).await?;
    let conflict = component.until_condition("second", "False", "ConfigMapConflict").await?;
    ensure!(conflict.contains("works-policies"), "{conflict}");
    for generation in 1..=3 {
        cluster.write("bad-memory", &content(FLOW, &json!({"min_memory": 100 + generation}))).await?;
        component.until_configured(&json!({"cluster.bad-memory": {"min_memory": 100 + generation}})).await?;
    }
    component.until_delivered("works", 1).await?;
    let failed = async |name: &str, wanted: &str| {
        until(&format!("the failure of {name}"), WAIT_TIMEOUT, async || {
            let status = component.status(name).await?;
            let delivered = status.conditions.iter().find(|it| it.type_ == "Delivered").context("no condition")?;
            ensure!(delivered.status == "False" && delivered.message.contains(wanted), "{delivered:?}");
            ensure!(status.policies.is_empty(), "{:?}", status.policies);
            Ok(status)
        })
        .await
    };
    let status = failed("hangs", "the command has not ended within 1 s").await?;
    let update = status.last_update.context("no update")?;
    ensure!(update.result == Some(UpdateResult::Failed), "{update:?}");
    failed("missing", "absent").await?;
    cluster.delete("bad-memory").await?;
    component.end().await
}

pub async fn changes_without_an_operator_are_delivered_after_its_start(cluster: &TestCluster) -> Result<()> {
    const FLOW: &str = "downtime";
    for name in ["downtime-changed", "downtime-removed"] {
        let generation = cluster.write(name, &content(FLOW, &json!({"value": 1}))).await?;
        cluster.until_live(name, generation).await?;
    }
    let component = Component::new(cluster, FLOW).await?;
    component.start().await?;
    component
        .subscribe("collector", json!([{"filter": {"attributes": {"flow": FLOW}}}]), exec("reconfigure", 10))
        .await?;
    component.until_delivered("collector", 2).await?;

    let changed = change_without_an_operator(cluster, &component, FLOW).await;
    // The other flows need the operators, also after a failure.
    scale_operators(cluster, OPERATOR_REPLICAS).await?;
    cluster.until_operators_answer().await?;
    changed?;

    let wanted = json!({"cluster.downtime-changed": {"value": 2}, "cluster.downtime-added": {"value": 3}});
    component.until_configured(&wanted).await?;
    component.until_delivered("collector", 2).await?;
    // A pod that starts now reads the same policies from the ConfigMap.
    component.restart().await?;
    component.until_configured(&wanted).await?;
    // An edit by hand is undone while the operator runs.
    component.edit("collector", "items.cluster.downtime-changed", "{}").await?;
    until("the repair of the ConfigMap", WAIT_TIMEOUT, async || {
        let body = component.stored_body("collector", "cluster.downtime-changed").await?;
        ensure!(body["config"]["value"] == 2, "{body}");
        Ok(())
    })
    .await?;
    for name in ["downtime-changed", "downtime-added", "downtime-removed"] {
        cluster.delete(name).await?;
    }
    component.end().await
}

/// Stops the operators, and changes policies and the `ConfigMap` of the component.
async fn change_without_an_operator(cluster: &TestCluster, component: &Component<'_>, flow: &str) -> Result<()> {
    scale_operators(cluster, 0).await?;
    // Without an operator, its webhook refuses policies. An administrator deletes the webhook configuration in an emergency.
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(cluster.client.clone());
    webhooks.delete(OPERATOR, &DeleteParams::default()).await?;
    cluster.retries_webhook_failures.store(true, Ordering::Relaxed);
    let changes = async {
        cluster.write("downtime-changed", &content(flow, &json!({"value": 2}))).await?;
        cluster.write("downtime-added", &content(flow, &json!({"value": 3}))).await?;
        cluster.write("downtime-removed", &content("other", &json!({"value": 1}))).await?;
        // Somebody edits the ConfigMap by hand meanwhile.
        component.edit("collector", "items.cluster.downtime-changed", "{}").await
    };
    let result = changes.await;
    cluster.retries_webhook_failures.store(false, Ordering::Relaxed);
    result
}

/// Sets the number of operators, and waits until so many are Ready and no other one runs.
async fn scale_operators(cluster: &TestCluster, replicas: usize) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch(OPERATOR, &PatchParams::default(), &patch).await?;
    until(&format!("{replicas} operators"), WAIT_TIMEOUT, async || {
        let pods = cluster.pods().list(&ListParams::default().labels(OPERATORS)).await?.items;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        ensure!(pods.len() == replicas && ready == replicas, "{ready} of {} are Ready", pods.len());
        Ok(())
    })
    .await
}
