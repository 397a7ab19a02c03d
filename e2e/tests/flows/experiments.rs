//! The three uses of a preview (AIP-236, "create"): of a new policy, of an update, of a deletion. Each as the guide has it,
//! by `proviso experiment`.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{LogParams, Patch, PatchParams};
use proviso_crds::{ClusterPolicyExperiment, DivergenceCounts, DivergenceSample, PreviewState};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, about, deny};

/// Requests that are made while a preview runs.
const REQUESTS: u64 = 12;

pub async fn preview_of_a_new_policy(stage: &Stage) -> Result<()> {
    // A policy that decides nothing yet, to make an experiment of.
    let first = stage.write("fresh", &no_op("fresh")).await?;
    stage.until_live("fresh", first).await?;
    let changed = manifest(stage, "fresh", &deny("fresh", "not any more"))?;
    let create = ["experiment", "create", "fresh-next", "--from", "clusterpolicy/fresh", "-f", &changed, "--start"];
    stage.proviso(&create).await?;
    let (counts, samples) = previewed(stage, "fresh", "fresh-next", None).await?;
    ensure!(counts.newly_denied == REQUESTS, "{counts:?}");
    let [sample] = &samples[..] else { anyhow::bail!("{samples:#?}") };
    ensure!(sample.kind == "ConfigMap" && sample.count == REQUESTS && sample.message == "not any more", "{sample:?}");
    commit(stage, "fresh-next", "fresh", Some("not any more")).await?;
    stage.delete("fresh").await
}

pub async fn preview_of_an_update(stage: &Stage) -> Result<()> {
    let first = stage.write("renewed", &deny("renewed", "one")).await?;
    stage.until_live("renewed", first).await?;
    let changed = manifest(stage, "renewed", &deny("renewed", "two"))?;
    stage.proviso(&["experiment", "create", "renewed-next", "--from", "clusterpolicy/renewed", "-f", &changed]).await?;
    let experiment = experiments(stage).get("renewed-next").await?;
    ensure!(experiment.status.is_none_or(|status| status.preview_metadata.is_none()), "it was never started");
    stage.proviso(&["experiment", "start", "renewed-next"]).await?;
    let (counts, _) = previewed(stage, "renewed", "renewed-next", Some("one")).await?;
    ensure!(counts.message_differs == REQUESTS, "{counts:?}");
    // An update of what is previewed suspends.
    let again = json!({"spec": {"policy": deny("renewed", "three")}});
    experiments(stage).patch("renewed-next", &PatchParams::default(), &Patch::Merge(again)).await?;
    until("it to be suspended", PATIENCE, async || {
        let preview = experiments(stage).get("renewed-next").await?.status.and_then(|status| status.preview_metadata);
        ensure!(preview.as_ref().is_some_and(|it| it.state == PreviewState::Suspended), "{preview:?}");
        Ok(())
    })
    .await?;
    commit(stage, "renewed-next", "renewed", Some("three")).await?;
    let revision = stage.revisions_of("renewed").await?.pop().context("no revision")?;
    let origin = revision.spec.experiment_ref.context("the revision does not say where it comes from")?;
    ensure!(origin.name == "renewed-next", "{origin:?}");
    stage.delete("renewed").await
}

pub async fn preview_of_a_deletion(stage: &Stage) -> Result<()> {
    let first = stage.write("outdated", &deny("outdated", "no")).await?;
    stage.until_live("outdated", first).await?;
    let create = ["experiment", "create", "outdated-gone", "--from", "clusterpolicy/outdated", "--no-op", "--start"];
    stage.proviso(&create).await?;
    let (counts, _) = previewed(stage, "outdated", "outdated-gone", Some("no")).await?;
    ensure!(counts.newly_allowed == REQUESTS, "{counts:?}");
    commit(stage, "outdated-gone", "outdated", None).await?;
    stage.delete("outdated").await
}

/// What decides nothing.
fn no_op(name: &str) -> Value {
    about(name, &json!({"cel": {"validations": []}}))
}

fn experiments(stage: &Stage) -> Api<ClusterPolicyExperiment> {
    Api::all(stage.client.clone())
}

/// A file with what a policy is to become.
fn manifest(stage: &Stage, name: &str, spec: &Value) -> Result<String> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec,
    });
    let file = stage.node.control_plane().folder().path().join(format!("{name}-changed.json"));
    std::fs::write(&file, policy.to_string())?;
    Ok(file.to_str().context("its path")?.to_owned())
}

/// Makes requests while an experiment is previewed on every replica; what its status counts in the end. The live policy
/// answers all of them.
async fn previewed(
    stage: &Stage,
    policy: &str,
    experiment: &str,
    live: Option<&str>,
) -> Result<(DivergenceCounts, Vec<DivergenceSample>)> {
    until("it to be previewed", PATIENCE, async || {
        let status = experiments(stage).get(experiment).await?.status.context("no status")?;
        let is_active = status.preview_metadata.as_ref().is_some_and(|preview| preview.state == PreviewState::Active);
        ensure!(is_active, "{status:#?}");
        ensure!(status.conditions.iter().any(|it| it.type_ == "Previewing" && it.status == "True"), "{status:#?}");
        Ok(())
    })
    .await?;
    let asker = stage.asker(policy);
    for _ in 0..REQUESTS {
        let answer = asker.make().await?;
        ensure!(answer.as_deref() == live, "{answer:?}");
    }
    // Those that only try are not counted.
    ensure!(asker.ask().await?.as_deref() == live);
    let counted = until("all to be counted", PATIENCE, async || {
        let status = experiments(stage).get(experiment).await?.status.context("no status")?;
        let counts = status.divergence.context("nothing counted")?;
        ensure!(counts.evaluated + counts.dropped >= REQUESTS, "{counts:?}");
        Ok((counts, status.samples))
    })
    .await?;
    ensure!((counted.0.evaluated, counted.0.dropped) == (REQUESTS, 0), "{:?}", counted.0);
    let mut lines = 0;
    for pod in stage.replicas_of("default").await? {
        let log = stage.pods().logs(&kube::ResourceExt::name_any(&pod), &LogParams::default()).await?;
        let ours = log.lines().filter_map(|line| line.strip_prefix("PolicyPreviewLog "));
        lines += ours.filter(|line| line.contains(&format!("{experiment}\""))).count();
    }
    ensure!(u64::try_from(lines)? == REQUESTS, "{lines} lines");
    Ok(counted)
}

/// Commits an experiment, and waits until the policy decides so.
async fn commit(stage: &Stage, experiment: &str, policy: &str, message: Option<&str>) -> Result<()> {
    stage.proviso(&["experiment", "status", experiment]).await?;
    let begin = Instant::now();
    stage.proviso(&["experiment", "commit", experiment, "--yes"]).await?;
    match message {
        Some(message) => stage.until_denied(policy, message).await?,
        None => {
            until("nobody to be denied", PATIENCE, async || {
                ensure!(stage.ask(policy).await?.is_none());
                Ok(())
            })
            .await?;
        }
    }
    eprintln!("from the commit to the first answer by the new spec: {:.2} s", begin.elapsed().as_secs_f64());
    until("the end of the experiment", PATIENCE, async || {
        ensure!(experiments(stage).get_opt(experiment).await?.is_none());
        Ok(())
    })
    .await?;
    stage.clear(policy).await
}
