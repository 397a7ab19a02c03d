//! Experiments of a policy: their maximum number, and their deletion.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::DynamicObject;
use proviso_crds::PolicyRevision;
use proviso_e2e::{until, until_after};
use serde_json::{Value, json};

use super::{about, policy};
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

#[tokio::test]
async fn ten_experiments_of_a_policy_are_previewed_and_the_eleventh_waits() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-too-many").await?;
    cluster.make_live("a", "true").await?;
    for number in 0..10 {
        cluster.apply_experiment(&format!("e{number}"), "a", &policy("1 < 2"), true).await?;
    }
    until_after(&cluster.experiments().get("e9").await?.creation_timestamp().context("its age")?).await?;
    cluster.apply_experiment("late", "a", &policy("1 < 2"), true).await?;
    // Experiments of another policy do not count.
    cluster.make_live("b", "true").await?;
    cluster.apply_experiment("other", "b", &policy("1 < 2"), true).await?;
    for name in (0..10).map(|number| format!("e{number}")).chain(["other".to_owned()]) {
        cluster.candidate(&name, 1).await?;
        cluster.serve(&format!("experiment.cluster.{name}-1"), POD).await?;
        cluster.until_experiment_condition(&name, "Previewing", "True", "Previewing").await?;
    }
    let status = cluster.until_experiment_condition("late", "Accepted", "False", "TooMany").await?;
    ensure!(status.preview_metadata.is_none(), "{status:#?}");
    cluster.until_described("late", "Warning  TooMany").await?;
    ensure!(cluster.api::<PolicyRevision>().get_opt("experiment.cluster.late-1").await?.is_none());
    cluster.experiments().delete("e3", &DeleteParams::default()).await?;
    cluster.candidate("late", 1).await?;
    cluster.until_experiment_condition("late", "Accepted", "True", "Accepted").await?;
    Ok(())
}

#[tokio::test]
async fn an_experiment_waits_for_its_policy_and_is_deleted_with_it() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-cascade").await?;
    cluster.apply_experiment("e", "a", &about("pods", "true"), true).await?;
    let status = cluster.until_experiment_condition("e", "Accepted", "False", "PolicyNotFound").await?;
    ensure!(status.preview_metadata.is_none(), "{status:#?}");
    cluster.apply_experiment("of-another", "b", &policy("true"), false).await?;
    cluster.make_live("a", "true").await?;
    cluster.candidate("e", 1).await?;
    cluster.serve("experiment.cluster.e-1", POD).await?;
    cluster.until_path("proviso-preview-cluster.e", "/preview/cluster.a/e/1").await?;

    // An experiment in a namespace, whose policy has the same name.
    let namespaced = |kind: &str| cluster.dynamic("proviso.dev/v1alpha1", kind, Some("default"));
    let apply = async |kind: &str, name: &str, spec: Value| -> Result<()> {
        let object = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        namespaced(kind).patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(object)).await?;
        Ok(())
    };
    apply("Policy", "a", about("pods", "true")).await?;
    cluster.serve("ns.default.a-1", POD).await?;
    let ours = json!({"policyRef": {"name": "a"}, "policy": about("configmaps", "true"), "autoStart": true});
    apply("PolicyExperiment", "e", ours).await?;
    cluster.serve("experiment.ns.default.e-1", POD).await?;
    cluster.until_path("proviso-preview-ns.default.e", "/preview/ns.default.a/e/1").await?;
    let webhook = cluster.webhooks().get("proviso-preview-ns.default.e").await?.webhooks.context("webhooks")?.remove(0);
    let selector = serde_json::to_string(&webhook.namespace_selector)?;
    ensure!(selector.contains(r#""values":["default"]"#), "{selector}");
    ensure!(webhook.rules.context("rules")?[0].scope.as_deref() == Some("Namespaced"));

    cluster.kubectl.run(&["delete", "clusterpolicy", "a", "--wait=false"]).await?;
    cluster.until_no_webhook("proviso-preview-cluster.e").await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    until("the experiment and its policy to go", TIMEOUT, async || {
        let policies = cluster.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        ensure!(cluster.experiments().get_opt("e").await?.is_none() && policies.get_opt("a").await?.is_none());
        Ok(())
    })
    .await?;
    // Experiments of other policies stay.
    ensure!(cluster.experiments().get("of-another").await?.metadata.deletion_timestamp.is_none());
    let other: DynamicObject = namespaced("PolicyExperiment").get("e").await?;
    ensure!(other.metadata.deletion_timestamp.is_none());
    cluster.until_path("proviso-preview-ns.default.e", "/preview/ns.default.a/e/1").await
}
