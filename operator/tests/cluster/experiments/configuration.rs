//! Experiments on policies that configure components: no policy server takes part.

use anyhow::{Context as _, Result, ensure};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicyRevision};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{TIMEOUT, TestCluster};

fn spec(limit: u32) -> Value {
    json!({"configuration": {"configName": "memory", "template": {"cel": format!("{{'limit': {limit}}}")}}})
}

/// Writes the policy `memory`, as its owner or as a commit does. Returns its generation.
async fn write_policy(cluster: &TestCluster, limit: u32, annotations: &Value) -> Result<i64> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy",
        "metadata": {"name": "memory", "annotations": annotations}, "spec": spec(limit),
    });
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    let written = policies.patch("memory", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
    written.metadata.generation.context("its generation")
}

#[tokio::test]
async fn a_candidate_is_previewed_stopped_and_committed_without_a_policy_server() -> Result<()> {
    let mut cluster = TestCluster::start("configuration-experiment").await?;
    cluster.start_operator(&[])?;
    cluster.kubectl.run(&["create", "namespace", "team"]).await?;
    write_policy(&cluster, 1, &json!({})).await?;
    cluster.until_active("memory", 1).await?;
    let canary = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
        "metadata": {"namespace": "team", "name": "collector"},
        "spec": {
            "scn": "collector", "policies": [{"id": "cluster.memory"}], "delivery": {"configMap": "policies"},
            "canaryFor": [{"policy": "cluster.memory", "experiment": "more"}],
        },
    });
    let subscriptions = cluster.dynamic("proviso.dev/v1alpha1", "PolicySubscription", Some("team"));
    subscriptions.patch("collector", &PatchParams::apply("owner").force(), &Patch::Apply(canary)).await?;

    // A candidate that does not compile suspends its start, with the cause.
    let broken = json!({"configuration": {"configName": "memory", "template": {"cel": "{"}}});
    cluster.apply_experiment("broken", "memory", &broken, false).await?;
    cluster.set_preview("broken", true).await?;
    let suspended = cluster.until_experiment_condition("broken", "Previewing", "False", "Suspended").await?;
    let cause = suspended.preview_metadata.and_then(|preview| preview.stop_cause).context("the cause of the stop")?;
    ensure!(cause.message.starts_with("spec.configuration.template.cel"), "{cause:?}");

    cluster.apply_experiment("more", "memory", &spec(2), false).await?;
    cluster.set_preview("more", true).await?;
    cluster.until_experiment_condition("more", "Previewing", "True", "Previewing").await?;
    let previewed = cluster.until_experiment("more", |status| !status.canaries.is_empty()).await?;
    let names: Vec<_> = previewed.canaries.iter().map(|it| (it.namespace.as_str(), it.name.as_str())).collect();
    ensure!(names == [("team", "collector")] && previewed.divergence.is_none(), "{previewed:#?}");
    let candidates = async || -> Result<usize> {
        let revisions = cluster.api::<PolicyRevision>().list(&ListParams::default()).await?.items;
        Ok(revisions.iter().filter(|it| it.name_any().starts_with("experiment.cluster.more")).count())
    };
    ensure!(candidates().await? == 1, "the candidate");

    cluster.set_preview("more", false).await?;
    let stopped = cluster.until_experiment_condition("more", "Previewing", "False", "Suspended").await?;
    ensure!(stopped.canaries.is_empty(), "{stopped:#?}");
    until("the end of the candidate", TIMEOUT, async || {
        ensure!(candidates().await? == 0, "the candidate exists");
        Ok(())
    })
    .await?;

    // The commit of a candidate that is not previewed: the operator validates it, and completes the commit.
    cluster.intend_commit("more", "id").await?;
    cluster.until_experiment_condition("more", "Initialized", "True", "Validated").await?;
    let uid = cluster.experiments().get("more").await?.uid().context("uid")?;
    let record = json!({"name": "more", "uid": uid, "generation": 1, "etag": "\"x\"", "commit": "id"}).to_string();
    let generation = write_policy(&cluster, 2, &json!({"proviso.dev/committed-experiment": record})).await?;
    cluster.until_active("memory", generation).await?;
    until("the experiment to be deleted", TIMEOUT, async || {
        ensure!(cluster.experiments().get_opt("more").await?.is_none(), "the experiment exists");
        Ok(())
    })
    .await
}
