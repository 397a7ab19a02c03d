//! Experiments of a policy: their maximum number, their deletion, and commits.

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use proviso_crds::PolicyRevision;
use proviso_e2e::until;
use serde_json::{Value, json};

use super::{about, policy, until_after};
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

#[tokio::test]
async fn an_interrupted_commit_is_completed() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-commit").await?;
    cluster.make_live("a", "true").await?;
    for name in ["e", "kept"] {
        cluster.apply_experiment(name, "a", &policy("1 < 2"), true).await?;
        cluster.candidate(name, 1).await?;
    }
    let uid = async |name: &str| -> Result<String> { cluster.experiments().get(name).await?.uid().context("uid") };
    let committed = |name: &str, uid: &str, generation: i64| {
        json!({"name": name, "uid": uid, "generation": generation, "etag": "\"x\""}).to_string()
    };
    let commit = async |annotation: &str, expression: &str| -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy",
            "metadata": {"name": "a", "annotations": {"proviso.dev/committed-experiment": annotation}},
            "spec": policy(expression),
        });
        let policies = cluster.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        let written = policies.patch("a", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("generation")
    };

    // A commit intent is removed when it has expired, and not before.
    let ago = |seconds: i64| (Timestamp::now() - SignedDuration::from_secs(seconds)).to_string();
    cluster.annotate("clusterpolicyexperiment", "kept", "proviso.dev/commit-intent", &ago(20)).await?;
    cluster.annotate("clusterpolicyexperiment", "e", "proviso.dev/commit-intent", &ago(70)).await?;
    until("the expired commit intent to be removed", TIMEOUT, async || {
        ensure!(!cluster.experiments().get("e").await?.annotations().contains_key("proviso.dev/commit-intent"));
        Ok(())
    })
    .await?;
    ensure!(cluster.experiments().get("kept").await?.annotations().contains_key("proviso.dev/commit-intent"));

    // The experiment stays if another generation of it, or another experiment of its name, was committed.
    let generation = commit(&committed("kept", &uid("kept").await?, 2), "2 < 3").await?;
    cluster.serve(&format!("cluster.a-{generation}"), POD).await?;
    cluster.until_path("proviso-cluster.a", &format!("/validate/cluster.a/{generation}")).await?;
    let generation = commit(&committed("kept", "another", 1), "3 < 4").await?;
    cluster.serve(&format!("cluster.a-{generation}"), POD).await?;
    cluster.until_path("proviso-cluster.a", &format!("/validate/cluster.a/{generation}")).await?;

    // The policy names this experiment as committed, and the client stopped before its second write.
    let named = uid("e").await?;
    let generation = commit(&committed("e", &named, 1), "1 < 2").await?;
    until("the experiment to go", TIMEOUT, async || {
        ensure!(cluster.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    ensure!(cluster.experiments().get("kept").await?.metadata.deletion_timestamp.is_none());
    cluster.candidate("kept", 1).await?;
    // The revision names its experiment. The next revision has no experiment.
    let next = cluster.apply_policy("a", "default", "5 < 6").await?;
    let revisions = cluster.api::<PolicyRevision>();
    let revision = async |generation: i64| {
        let name = format!("cluster.a-{generation}");
        until(&name, TIMEOUT, async || Ok(revisions.get(&name).await?)).await
    };
    let of = revision(generation).await?.spec.experiment_ref.context("its experiment")?;
    ensure!((of.name.as_str(), of.uid.as_str(), of.generation) == ("e", named.as_str(), 1));
    ensure!(next == generation + 1);
    let next = commit(&committed("e", &named, 1), "6 < 7").await?;
    ensure!(revision(next).await?.spec.experiment_ref.is_none());
    let all = revisions.list(&ListParams::default()).await?.items;
    let of_e = all.iter().filter(|it| it.spec.experiment_ref.as_ref().is_some_and(|it| it.uid == named));
    ensure!(of_e.count() == 1);
    Ok(())
}
