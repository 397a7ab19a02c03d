//! Commits that their caller does not complete.

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicyRevision};
use proviso_e2e::until;
use serde_json::{Value, json};

use super::policy;
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

/// Returns the record of a commit, as the API writes it.
fn record(name: &str, uid: &str, generation: i64, commit: &str) -> Value {
    json!({"name": name, "uid": uid, "generation": generation, "etag": "\"x\"", "commit": commit})
}

impl TestCluster {
    /// Changes the policy `a` and its record of the committed experiment, as a commit does. Returns the new generation.
    async fn copy_to_policy(&self, record: &Value, expression: &str) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy",
            "metadata": {"name": "a", "annotations": {"proviso.dev/committed-experiment": record.to_string()}},
            "spec": policy(expression),
        });
        let policies = self.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        let written = policies.patch("a", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("generation")
    }
}

#[tokio::test]
async fn an_interrupted_commit_is_completed_and_a_forged_record_deletes_nothing() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-commit").await?;
    cluster.make_live("a", "true").await?;
    for name in ["e", "kept"] {
        cluster.apply_experiment(name, "a", &policy("1 < 2"), true).await?;
        cluster.candidate(name, 1).await?;
    }
    let uid = async |name: &str| -> Result<String> { cluster.experiments().get(name).await?.uid().context("uid") };

    // The experiment stays without the intent of a commit, and if the policy records another commit, another generation
    // of the experiment, or another experiment, or has another spec.
    let kept = uid("kept").await?;
    for (round, (has_intent, record, expression)) in [
        (false, record("kept", &kept, 1, "early"), "1 < 2"),
        (true, record("kept", &kept, 1, "another"), "1 < 2"),
        (true, record("kept", &kept, 2, "id"), "1 < 2"),
        (true, record("kept", "another", 1, "id"), "1 < 2"),
        // Users who may read the experiment know the id.
        (true, record("kept", &kept, 1, "id"), "3 < 4"),
    ]
    .into_iter()
    .enumerate()
    {
        if has_intent {
            cluster.intend_commit("kept", "id").await?;
        }
        // The same spec would be no new generation.
        cluster.apply_policy("a", "default", &format!("{round} < 9")).await?;
        let generation = cluster.copy_to_policy(&record, expression).await?;
        cluster.serve(&format!("cluster.a-{generation}"), POD).await?;
        cluster.until_path("proviso-cluster.a", &format!("/validate/cluster.a/{generation}")).await?;
        let found = cluster.experiments().get("kept").await?;
        ensure!(found.metadata.deletion_timestamp.is_none(), "{record}");
    }

    // The policy records this commit, and the client stopped before it deleted the experiment.
    let named = uid("e").await?;
    cluster.intend_commit("e", "id").await?;
    let generation = cluster.copy_to_policy(&record("e", &named, 1, "id"), "1 < 2").await?;
    let revisions = cluster.api::<PolicyRevision>();
    let revision = async |generation: i64| {
        let name = format!("cluster.a-{generation}");
        until(&name, TIMEOUT, async || Ok(revisions.get(&name).await?)).await
    };
    // The operator makes a revision of the newest generation only.
    let of = revision(generation).await?.spec.experiment_ref.context("its experiment")?;
    ensure!((of.name.as_str(), of.uid.as_str(), of.generation) == ("e", named.as_str(), 1));
    until("the experiment to go", TIMEOUT, async || {
        ensure!(cluster.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    ensure!(cluster.experiments().get("kept").await?.metadata.deletion_timestamp.is_none());
    cluster.candidate("kept", 1).await?;
    // The next revision has no experiment.
    let next = cluster.apply_policy("a", "default", "5 < 6").await?;
    ensure!(next == generation + 1);
    ensure!(revision(next).await?.spec.experiment_ref.is_none());
    let next = cluster.copy_to_policy(&record("e", &named, 1, "id"), "6 < 7").await?;
    ensure!(revision(next).await?.spec.experiment_ref.is_none());
    let all = revisions.list(&ListParams::default()).await?.items;
    let of_e = all.iter().filter(|it| it.spec.experiment_ref.as_ref().is_some_and(|it| it.uid == named));
    ensure!(of_e.count() == 1);
    Ok(())
}

#[tokio::test]
async fn a_commit_is_prepared_without_a_preview_and_aborted_if_its_caller_stops() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-abort").await?;
    cluster.make_live("a", "true").await?;
    cluster.until_active("a", 1).await?;
    cluster.apply_experiment("e", "a", &policy("1 < 2"), false).await?;
    cluster.until_experiment_condition("e", "Previewing", "False", "NotStarted").await?;
    cluster.intend_commit("e", "id").await?;
    let candidate = cluster.candidate("e", 1).await?;
    ensure!(!candidate.spec.enabled && !candidate.annotations().contains_key("proviso.dev/preview-start"));
    cluster.until_experiment_condition("e", "Initialized", "Unknown", "Preparing").await?;
    cluster.serve("experiment.cluster.e-1", POD).await?;
    cluster.until_experiment_condition("e", "Initialized", "True", "Prepared").await?;
    cluster.until_experiment_condition("e", "Previewing", "False", "NotStarted").await?;

    // A user forges the record of the commit. The policy does not have the spec of the experiment.
    let uid = cluster.experiments().get("e").await?.uid().context("uid")?;
    let forged = record("e", &uid, 1, "id").to_string();
    cluster.annotate("clusterpolicy", "a", "proviso.dev/committed-experiment", &forged).await?;

    // The caller has read the policy, and stops. A stalled write names the last version before the abort.
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    let mut stale = policies.get("a").await?;
    until("the commit to be aborted", 4 * TIMEOUT, async || {
        let before = policies.get("a").await?;
        if cluster.experiment_status("e").await?.commit.is_none() {
            return Ok(());
        }
        if before.status.as_ref().is_some_and(|status| status.aborted_commit.is_none()) {
            stale = before;
        }
        bail!("the commit is in progress")
    })
    .await?;
    let marked = policies.get("a").await?;
    let mut expected = stale.status.clone().context("no status")?;
    expected.aborted_commit = Some("id".to_owned());
    ensure!(marked.status.as_ref() == Some(&expected) && marked.spec == stale.spec, "{marked:#?}");
    stale.spec.0.revision_history_limit = 3;
    match policies.replace("a", &PostParams::default(), &stale).await {
        Err(kube::Error::Api(status)) if status.is_conflict() => {}
        other => bail!("a stalled write of the commit: {other:?}"),
    }
    cluster.until_described("e", "Warning  CommitAborted").await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    cluster.until_experiment_condition("e", "Initialized", "Unknown", "NotStarted").await?;

    // The mark stays when the operator writes the status of the policy, and another commit is possible.
    cluster.make_live("a", "3 < 4").await?;
    cluster.until_active("a", 2).await?;
    ensure!(policies.get("a").await?.status.and_then(|status| status.aborted_commit).as_deref() == Some("id"));
    ensure!(cluster.experiments().get("e").await?.uid().as_ref() == Some(&uid));
    cluster.intend_commit("e", "next").await?;
    cluster.copy_to_policy(&record("e", &uid, 1, "next"), "1 < 2").await?;
    until("the experiment to go", TIMEOUT, async || {
        ensure!(cluster.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await
}
