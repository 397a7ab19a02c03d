//! Webhooks of their own, for experiments about other requests than their policy.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use proviso_e2e::until;
use serde_json::{Value, json};

use super::about;
use crate::stage::{NAMESPACE, PATIENCE, POD, Stage};

#[tokio::test]
async fn what_covers_other_requests_than_its_policy_has_a_webhook_that_stops_nobody() -> Result<()> {
    let stage = Stage::serving("experiment-webhook").await?;
    stage.live("a", "true").await?;
    stage.experiment("e", "a", &about("pods", "false"), true).await?;
    stage.candidate("e", 1).await?;
    let (name, path) = ("proviso-preview-cluster.e", "/preview/cluster.a/e/1");
    ensure!(stage.webhooks().get_opt(name).await?.is_none(), "nobody has loaded it yet");
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.until_path(name, path).await?;
    let found = stage.webhooks().get(name).await?;
    ensure!(found.labels().get("proviso.dev/experiment-uid") == stage.experiments().get("e").await?.uid().as_ref());
    let webhook = found.webhooks.context("webhooks")?.remove(0);
    ensure!(webhook.failure_policy.as_deref() == Some("Ignore") && webhook.timeout_seconds == Some(1), "{webhook:?}");
    ensure!(webhook.side_effects == "None" && webhook.name == "cluster.e.preview.proviso.dev", "{webhook:?}");
    let conditions = serde_json::to_string(&webhook.match_conditions)?;
    ensure!(conditions.contains(NAMESPACE) && conditions.contains("leases"), "{conditions}");
    ensure!(webhook.client_config.service.context("service")?.name == "policy-server-default");
    let bundle = webhook.client_config.ca_bundle.context("a bundle")?;
    ensure!(String::from_utf8(bundle.0)? == stage.secret("proviso-ca", "bundle.crt").await?);

    // By hand: restored.
    for change in [
        json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]),
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/nowhere"}]),
    ] {
        let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
        stage.webhooks().patch(name, &PatchParams::default(), &change).await?;
        until("the webhook to be restored", PATIENCE, async || {
            let webhook = stage.webhooks().get(name).await?.webhooks.context("webhooks")?.remove(0);
            let service = webhook.client_config.service.context("service")?;
            ensure!(webhook.failure_policy.as_deref() == Some("Ignore") && service.path.as_deref() == Some(path));
            Ok(())
        })
        .await?;
    }
    stage.webhooks().delete(name, &DeleteParams::default()).await?;
    stage.until_path(name, path).await?;

    // A policy that covers the same brings it along.
    let apply = async |spec: &Value| -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"}, "spec": spec,
        });
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        let written = policies.patch("a", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("generation")
    };
    let generation = apply(&about("pods", "true")).await?;
    stage.serve(&format!("cluster.a-{generation}"), POD).await?;
    stage.until_no_webhook(name).await?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;
    // And one that is disabled brings nothing: what it would be like on again is asked by a webhook.
    let mut disabled = about("pods", "true");
    disabled["enabled"] = json!(false);
    apply(&disabled).await?;
    stage.until_path(name, path).await?;
    stage.until_experiment("e", |it| it.live_etag.is_none()).await?;

    // What turns the policy off says nothing about other requests.
    let mut off = about("services", "true");
    off["enabled"] = json!(false);
    stage.experiment("e", "a", &off, true).await?;
    stage.until_no_webhook(name).await?;
    stage.candidate("e", 2).await?;
    stage.serve("experiment.cluster.e-2", POD).await?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;
    ensure!(stage.webhooks().get_opt(name).await?.is_none());
    Ok(())
}
