//! The flow of an API server that learns late of a switch.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::DeleteParams;
use proviso_e2e::until_with;
use serde_json::json;

use crate::load::deny_with_long_timeout;
use crate::test_cluster::{LABEL, RETIRE_AFTER, TestCluster, WAIT_TIMEOUT};

/// The name of a copy of a webhook, and the label of the `ConfigMap`s that it matches.
const OUTDATED: &str = "late-outdated";
/// Kubernetes stores the time of a switch in whole seconds.
const PRECISION: Duration = Duration::from_secs(1);

pub async fn the_previous_generation_answers_until_the_end_of_its_grace_period(cluster: &TestCluster) -> Result<()> {
    let name = "late";
    let first = cluster.write(name, &deny_with_long_timeout(name, "1")).await?;
    cluster.until_live(name, first).await?;
    // The copy calls the first generation also after the switch, as an API server does that has not seen the switch yet.
    let mut webhook = cluster.webhook(name).await?.context("no webhook")?;
    webhook["name"] = "late-outdated.example.com".into();
    webhook["objectSelector"] = json!({"matchLabels": {LABEL: OUTDATED}});
    let copy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": OUTDATED}, "webhooks": [webhook],
    });
    cluster.apply(&copy).await?;
    cluster.until_denied(OUTDATED, "1").await?;

    let begin = Instant::now();
    let second = cluster.write(name, &deny_with_long_timeout(name, "2")).await?;
    cluster.until_live(name, second).await?;
    cluster.until_denied(name, "2").await?;
    let outdated = cluster.requester(OUTDATED);
    // The API server repeats a call that is answered with 503, so the last request takes several seconds.
    let last = until_with("the end of the grace period", WAIT_TIMEOUT, WAIT_TIMEOUT, async || {
        match outdated.dry_run().await {
            Ok(Some(message)) if message == "1" => bail!("generation {first} still answers"),
            other => Ok(other),
        }
    });
    let last = last.await?;
    let took = begin.elapsed();
    let error = match last {
        Ok(verdict) => bail!("the webhook of generation {first} returned {verdict:?}"),
        Err(error) => format!("{error:#}"),
    };
    ensure!(took + PRECISION >= RETIRE_AFTER, "generation {first} answered only for {took:?}: {error}");
    ensure!(error.contains("failed calling webhook"), "{error}");
    let revisions = cluster.revisions_of(name).await?;
    let retired = revisions.iter().find(|it| it.spec.policy_ref.generation == first).context("no revision")?;
    ensure!(!retired.spec.enabled, "generation {first} does not answer, although it is enabled: {error}");
    ensure!(cluster.denial(name).await?.as_deref() == Some("2"), "generation {second} does not answer");
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(cluster.client.clone());
    webhooks.delete(OUTDATED, &DeleteParams::default()).await?;
    cluster.delete(name).await
}
