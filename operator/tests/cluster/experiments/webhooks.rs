//! Webhooks of experiments that cover other requests than their policy.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use proviso_e2e::until;
use serde_json::{Value, json};

use super::about;
use crate::test_cluster::{NAMESPACE, POD, TIMEOUT, TestCluster};

#[tokio::test]
async fn an_experiment_with_other_rules_gets_a_webhook_that_ignores_failures() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-webhook").await?;
    cluster.make_live("a", "true").await?;
    cluster.apply_experiment("e", "a", &about("pods", "false"), true).await?;
    cluster.candidate("e", 1).await?;
    let (name, path) = ("proviso-preview-cluster.e", "/preview/cluster.a/e/1");
    ensure!(cluster.webhooks().get_opt(name).await?.is_none(), "no replica has loaded the candidate yet");
    cluster.serve("experiment.cluster.e-1", POD).await?;
    cluster.until_path(name, path).await?;
    let found = cluster.webhooks().get(name).await?;
    ensure!(found.labels().get("proviso.dev/experiment-uid") == cluster.experiments().get("e").await?.uid().as_ref());
    let webhook = found.webhooks.context("webhooks")?.remove(0);
    ensure!(webhook.failure_policy.as_deref() == Some("Ignore") && webhook.timeout_seconds == Some(1), "{webhook:?}");
    ensure!(webhook.side_effects == "None" && webhook.name == "cluster.e.preview.proviso.dev", "{webhook:?}");
    let conditions = serde_json::to_string(&webhook.match_conditions)?;
    ensure!(conditions.contains(NAMESPACE) && conditions.contains("leases"), "{conditions}");
    ensure!(webhook.client_config.service.context("service")?.name == "policy-server-default");
    let bundle = webhook.client_config.ca_bundle.context("a bundle")?;
    ensure!(String::from_utf8(bundle.0)? == cluster.secret("proviso-ca", "bundle.crt").await?);

    // Manual changes are reverted.
    for change in [
        json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]),
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/nowhere"}]),
    ] {
        let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
        cluster.webhooks().patch(name, &PatchParams::default(), &change).await?;
        until("the webhook to be restored", TIMEOUT, async || {
            let webhook = cluster.webhooks().get(name).await?.webhooks.context("webhooks")?.remove(0);
            let found = cluster.without_token(Some(webhook.client_config)).await?;
            ensure!(webhook.failure_policy.as_deref() == Some("Ignore") && found.as_deref() == Some(path), "{found:?}");
            Ok(())
        })
        .await?;
    }
    cluster.webhooks().delete(name, &DeleteParams::default()).await?;
    cluster.until_path(name, path).await?;

    // If the policy covers the same requests, the experiment shares the webhook of the policy.
    let apply = async |spec: &Value| -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"}, "spec": spec,
        });
        let policies = cluster.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        let written = policies.patch("a", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("generation")
    };
    let generation = apply(&about("pods", "true")).await?;
    cluster.serve(&format!("cluster.a-{generation}"), POD).await?;
    cluster.until_no_webhook(name).await?;
    cluster.until_experiment_condition("e", "Previewing", "True", "Previewing").await?;
    // A disabled policy has no webhook, so the experiment has its own one.
    let mut disabled = about("pods", "true");
    disabled["enabled"] = json!(false);
    apply(&disabled).await?;
    cluster.until_path(name, path).await?;
    cluster.until_experiment("e", |it| it.live_etag.is_none()).await?;

    // An experiment that disables the policy evaluates no request, and has no webhook.
    let mut off = about("services", "true");
    off["enabled"] = json!(false);
    cluster.apply_experiment("e", "a", &off, true).await?;
    cluster.until_no_webhook(name).await?;
    cluster.candidate("e", 2).await?;
    cluster.serve("experiment.cluster.e-2", POD).await?;
    cluster.until_experiment_condition("e", "Previewing", "True", "Previewing").await?;
    ensure!(cluster.webhooks().get_opt(name).await?.is_none());
    Ok(())
}
