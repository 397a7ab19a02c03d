//! The three uses of a preview (AIP-236, "create"): a new policy, an update, a deletion. Each test uses `proviso experiment`, as
//! the documentation does.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{LogParams, Patch, PatchParams};
use proviso_crds::{ClusterPolicyExperiment, DivergenceCounts, DivergenceSample, PreviewState};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::load::{deny_with_long_timeout as deny, with_long_timeout};
use crate::test_cluster::{TestCluster, WAIT_TIMEOUT, policy_spec};

/// The number of requests during a preview.
const REQUESTS: u64 = 12;

pub async fn preview_of_a_new_policy(cluster: &TestCluster) -> Result<()> {
    // The policy allows everything. The experiment is the first version that denies.
    let first = cluster.write("fresh", &no_op("fresh")).await?;
    cluster.until_live("fresh", first).await?;
    let changed = manifest(cluster, "fresh", &deny("fresh", "not any more"))?;
    let create = ["experiment", "create", "fresh-next", "--from", "clusterpolicy/fresh", "-f", &changed, "--start"];
    cluster.proviso(&create).await?;
    let (counts, samples) = previewed(cluster, "fresh", "fresh-next", None).await?;
    ensure!(counts.newly_denied == REQUESTS, "{counts:?}");
    let [sample] = &samples[..] else { anyhow::bail!("{samples:#?}") };
    ensure!(sample.kind == "ConfigMap" && sample.count == REQUESTS && sample.message == "not any more", "{sample:?}");
    commit(cluster, "fresh-next", "fresh", Some("not any more")).await?;
    cluster.delete("fresh").await
}

pub async fn preview_of_an_update(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("renewed", &deny("renewed", "one")).await?;
    cluster.until_live("renewed", first).await?;
    let changed = manifest(cluster, "renewed", &deny("renewed", "two"))?;
    cluster
        .proviso(&["experiment", "create", "renewed-next", "--from", "clusterpolicy/renewed", "-f", &changed])
        .await?;
    let experiment = experiments(cluster).get("renewed-next").await?;
    ensure!(experiment.status.is_none_or(|status| status.preview_metadata.is_none()), "the experiment was not started");
    cluster.proviso(&["experiment", "start", "renewed-next"]).await?;
    let (counts, _) = previewed(cluster, "renewed", "renewed-next", Some("one")).await?;
    ensure!(counts.message_differs == REQUESTS, "{counts:?}");
    // An update of the experiment suspends the preview.
    let again = json!({"spec": {"policy": deny("renewed", "three")}});
    experiments(cluster).patch("renewed-next", &PatchParams::default(), &Patch::Merge(again)).await?;
    until("the preview to be suspended", WAIT_TIMEOUT, async || {
        let preview = experiments(cluster).get("renewed-next").await?.status.and_then(|status| status.preview_metadata);
        ensure!(preview.as_ref().is_some_and(|it| it.state == PreviewState::Suspended), "{preview:?}");
        Ok(())
    })
    .await?;
    commit(cluster, "renewed-next", "renewed", Some("three")).await?;
    let revision = cluster.revisions_of("renewed").await?.pop().context("no revision")?;
    let origin = revision.spec.experiment_ref.context("the revision does not name its experiment")?;
    ensure!(origin.name == "renewed-next", "{origin:?}");
    cluster.delete("renewed").await
}

pub async fn preview_of_a_deletion(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("outdated", &deny("outdated", "no")).await?;
    cluster.until_live("outdated", first).await?;
    let create = ["experiment", "create", "outdated-gone", "--from", "clusterpolicy/outdated", "--no-op", "--start"];
    cluster.proviso(&create).await?;
    let (counts, _) = previewed(cluster, "outdated", "outdated-gone", Some("no")).await?;
    ensure!(counts.newly_allowed == REQUESTS, "{counts:?}");
    commit(cluster, "outdated-gone", "outdated", None).await?;
    cluster.delete("outdated").await
}

/// Returns the spec of a policy that allows everything.
fn no_op(name: &str) -> Value {
    with_long_timeout(policy_spec(name, &json!({"cel": {"validations": []}})))
}

pub fn experiments(cluster: &TestCluster) -> Api<ClusterPolicyExperiment> {
    Api::all(cluster.client.clone())
}

/// Writes the manifest of a policy with this spec, and returns the path of the file.
fn manifest(cluster: &TestCluster, name: &str, spec: &Value) -> Result<String> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec,
    });
    let file = cluster.node.control_plane().folder().path().join(format!("{name}-changed.json"));
    std::fs::write(&file, policy.to_string())?;
    Ok(file.to_str().context("its path")?.to_owned())
}

/// Waits until every replica previews the experiment, makes requests, and returns the counts and samples of its status. `live` is
/// the message with which the live policy denies the requests; `None` if it allows them.
async fn previewed(
    cluster: &TestCluster,
    policy: &str,
    experiment: &str,
    live: Option<&str>,
) -> Result<(DivergenceCounts, Vec<DivergenceSample>)> {
    until("the experiment to be previewed", WAIT_TIMEOUT, async || {
        let status = experiments(cluster).get(experiment).await?.status.context("no status")?;
        let is_active = status.preview_metadata.as_ref().is_some_and(|preview| preview.state == PreviewState::Active);
        ensure!(is_active, "{status:#?}");
        ensure!(status.conditions.iter().any(|it| it.type_ == "Previewing" && it.status == "True"), "{status:#?}");
        Ok(())
    })
    .await?;
    let requester = cluster.requester(policy);
    for _ in 0..REQUESTS {
        let answer = requester.create().await?;
        ensure!(answer.as_deref() == live, "{answer:?}");
    }
    // A dry run is not counted.
    ensure!(requester.dry_run().await?.as_deref() == live);
    let counted = until("all requests to be counted", WAIT_TIMEOUT, async || {
        let status = experiments(cluster).get(experiment).await?.status.context("no status")?;
        let counts = status.divergence.context("no counts")?;
        ensure!(counts.evaluated + counts.dropped >= REQUESTS, "{counts:?}");
        Ok((counts, status.samples))
    })
    .await?;
    ensure!((counted.0.evaluated, counted.0.dropped) == (REQUESTS, 0), "{:?}", counted.0);
    let mut lines = 0;
    for pod in cluster.replicas_of("default").await? {
        let log = cluster.pods().logs(&kube::ResourceExt::name_any(&pod), &LogParams::default()).await?;
        let ours = log.lines().filter_map(|line| line.strip_prefix("PolicyPreviewLog "));
        lines += ours.filter(|line| line.contains(&format!("{experiment}\""))).count();
    }
    ensure!(u64::try_from(lines)? == REQUESTS, "{lines} lines");
    Ok(counted)
}

/// Commits an experiment, and waits until the policy denies with `message`, or with `None` allows.
async fn commit(cluster: &TestCluster, experiment: &str, policy: &str, message: Option<&str>) -> Result<()> {
    cluster.proviso(&["experiment", "status", experiment]).await?;
    let begin = Instant::now();
    cluster.proviso(&["experiment", "commit", experiment, "--yes"]).await?;
    match message {
        Some(message) => cluster.until_denied(policy, message).await?,
        None => {
            until("requests to be allowed", WAIT_TIMEOUT, async || {
                ensure!(cluster.denial(policy).await?.is_none());
                Ok(())
            })
            .await?;
        }
    }
    eprintln!("time from the commit to the first verdict of the new spec: {:.2} s", begin.elapsed().as_secs_f64());
    until("the end of the experiment", WAIT_TIMEOUT, async || {
        ensure!(experiments(cluster).get_opt(experiment).await?.is_none());
        Ok(())
    })
    .await?;
    cluster.clear(policy).await
}
