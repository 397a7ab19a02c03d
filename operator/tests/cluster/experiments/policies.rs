//! Experiments and their policy: how many, how long, and what is committed.

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use proviso_crds::PolicyRevision;
use proviso_e2e::until;
use serde_json::{Value, json};

use super::{about, policy, until_after};
use crate::stage::{PATIENCE, POD, Stage};

#[tokio::test]
async fn ten_experiments_of_a_policy_are_previewed_and_the_eleventh_waits_for_room() -> Result<()> {
    let stage = Stage::serving("experiment-too-many").await?;
    stage.live("a", "true").await?;
    for number in 0..10 {
        stage.experiment(&format!("e{number}"), "a", &policy("1 < 2"), true).await?;
    }
    until_after(&stage.experiments().get("e9").await?.creation_timestamp().context("its age")?).await?;
    stage.experiment("late", "a", &policy("1 < 2"), true).await?;
    // Those of another policy do not count.
    stage.live("b", "true").await?;
    stage.experiment("other", "b", &policy("1 < 2"), true).await?;
    for name in (0..10).map(|number| format!("e{number}")).chain(["other".to_owned()]) {
        stage.candidate(&name, 1).await?;
        stage.serve(&format!("experiment.cluster.{name}-1"), POD).await?;
        stage.until_told(&name, "Previewing", "True", "Previewing").await?;
    }
    let status = stage.until_told("late", "Accepted", "False", "TooMany").await?;
    ensure!(status.preview_metadata.is_none(), "{status:#?}");
    stage.until_described("late", "Warning  TooMany").await?;
    ensure!(stage.api::<PolicyRevision>().get_opt("experiment.cluster.late-1").await?.is_none());
    stage.experiments().delete("e3", &DeleteParams::default()).await?;
    stage.candidate("late", 1).await?;
    stage.until_told("late", "Accepted", "True", "Accepted").await?;
    Ok(())
}

#[tokio::test]
async fn an_experiment_waits_for_its_policy_and_goes_with_it() -> Result<()> {
    let stage = Stage::serving("experiment-cascade").await?;
    stage.experiment("e", "a", &about("pods", "true"), true).await?;
    let status = stage.until_told("e", "Accepted", "False", "PolicyNotFound").await?;
    ensure!(status.preview_metadata.is_none(), "{status:#?}");
    stage.experiment("of-another", "b", &policy("true"), false).await?;
    stage.live("a", "true").await?;
    stage.candidate("e", 1).await?;
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.until_path("proviso-preview-cluster.e", "/preview/cluster.a/e/1").await?;

    // One of a namespace, whose policy has the same name.
    let namespaced = |kind: &str| stage.dynamic("proviso.dev/v1alpha1", kind, Some("default"));
    let apply = async |kind: &str, name: &str, spec: Value| -> Result<()> {
        let object = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        namespaced(kind).patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(object)).await?;
        Ok(())
    };
    apply("Policy", "a", about("pods", "true")).await?;
    stage.serve("ns.default.a-1", POD).await?;
    let ours = json!({"policyRef": {"name": "a"}, "policy": about("configmaps", "true"), "autoStart": true});
    apply("PolicyExperiment", "e", ours).await?;
    stage.serve("experiment.ns.default.e-1", POD).await?;
    stage.until_path("proviso-preview-ns.default.e", "/preview/ns.default.a/e/1").await?;
    let webhook = stage.webhooks().get("proviso-preview-ns.default.e").await?.webhooks.context("webhooks")?.remove(0);
    let selector = serde_json::to_string(&webhook.namespace_selector)?;
    ensure!(selector.contains(r#""values":["default"]"#), "{selector}");
    ensure!(webhook.rules.context("rules")?[0].scope.as_deref() == Some("Namespaced"));

    stage.kubectl.run(&["delete", "clusterpolicy", "a", "--wait=false"]).await?;
    stage.until_no_webhook("proviso-preview-cluster.e").await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    until("the experiment and its policy to go", PATIENCE, async || {
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        ensure!(stage.experiments().get_opt("e").await?.is_none() && policies.get_opt("a").await?.is_none());
        Ok(())
    })
    .await?;
    // Others stay.
    ensure!(stage.experiments().get("of-another").await?.metadata.deletion_timestamp.is_none());
    let other: DynamicObject = namespaced("PolicyExperiment").get("e").await?;
    ensure!(other.metadata.deletion_timestamp.is_none());
    stage.until_path("proviso-preview-ns.default.e", "/preview/ns.default.a/e/1").await
}

#[tokio::test]
async fn a_commit_that_was_interrupted_is_brought_to_its_end() -> Result<()> {
    let stage = Stage::serving("experiment-commit").await?;
    stage.live("a", "true").await?;
    for name in ["e", "kept"] {
        stage.experiment(name, "a", &policy("1 < 2"), true).await?;
        stage.candidate(name, 1).await?;
    }
    let uid = async |name: &str| -> Result<String> { stage.experiments().get(name).await?.uid().context("uid") };
    let committed = |name: &str, uid: &str, generation: i64| {
        json!({"name": name, "uid": uid, "generation": generation, "etag": "\"x\""}).to_string()
    };
    let commit = async |annotation: &str, expression: &str| -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy",
            "metadata": {"name": "a", "annotations": {"proviso.dev/committed-experiment": annotation}},
            "spec": policy(expression),
        });
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        let written = policies.patch("a", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("generation")
    };

    // Somebody is about to commit: that is not forgotten while it may be true.
    let ago = |seconds: i64| (Timestamp::now() - SignedDuration::from_secs(seconds)).to_string();
    stage.annotate("clusterpolicyexperiment", "kept", "proviso.dev/commit-intent", &ago(20)).await?;
    stage.annotate("clusterpolicyexperiment", "e", "proviso.dev/commit-intent", &ago(70)).await?;
    until("what was long ago to be forgotten", PATIENCE, async || {
        ensure!(!stage.experiments().get("e").await?.annotations().contains_key("proviso.dev/commit-intent"));
        Ok(())
    })
    .await?;
    ensure!(stage.experiments().get("kept").await?.annotations().contains_key("proviso.dev/commit-intent"));

    // Another generation of it, or another one of its name, was committed: it stays.
    let generation = commit(&committed("kept", &uid("kept").await?, 2), "2 < 3").await?;
    stage.serve(&format!("cluster.a-{generation}"), POD).await?;
    stage.until_path("proviso-cluster.a", &format!("/validate/cluster.a/{generation}")).await?;
    let generation = commit(&committed("kept", "another", 1), "3 < 4").await?;
    stage.serve(&format!("cluster.a-{generation}"), POD).await?;
    stage.until_path("proviso-cluster.a", &format!("/validate/cluster.a/{generation}")).await?;

    // The policy says that it is this one, and whoever wrote that came no further.
    let named = uid("e").await?;
    let generation = commit(&committed("e", &named, 1), "1 < 2").await?;
    until("the experiment to go", PATIENCE, async || {
        ensure!(stage.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    ensure!(stage.experiments().get("kept").await?.metadata.deletion_timestamp.is_none());
    stage.candidate("kept", 1).await?;
    // The revision says where it came from; the next one comes from somewhere else.
    let next = stage.policy("a", "default", "5 < 6").await?;
    let revisions = stage.api::<PolicyRevision>();
    let revision = async |generation: i64| {
        let name = format!("cluster.a-{generation}");
        until(&name, PATIENCE, async || Ok(revisions.get(&name).await?)).await
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
