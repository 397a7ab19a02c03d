//! Started, stopped, suspended by an update, and taken up again by another operator.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use proviso_crds::{ExperimentStatus, PolicyRevision, PreviewState, RevisionRole};
use proviso_e2e::until;
use serde_json::json;

use super::{about, policy, state, until_after};
use crate::stage::{PATIENCE, POD, Stage};

#[tokio::test]
async fn an_experiment_is_started_stopped_and_suspended_by_an_update() -> Result<()> {
    let stage = Stage::serving("experiment-states").await?;
    stage.live("a", "true").await?;
    stage.experiment("e", "a", &policy("1 < 2"), false).await?;
    let status = stage.until_told("e", "Accepted", "True", "Accepted").await?;
    ensure!(status.preview_metadata.is_none() && status.divergence.is_none(), "{status:#?}");
    let (experiment, live) =
        (stage.experiments().get("e").await?, stage.api::<PolicyRevision>().get("cluster.a-1").await?);
    let etag = |uid: Option<String>| Some(proviso_core::experiment::etag(&uid.unwrap(), 1));
    ensure!(status.etag == etag(experiment.uid()), "{status:#?}");
    ensure!(status.live_etag == etag(Some(live.spec.policy_ref.uid.clone())), "{status:#?}");
    stage.until_told("e", "Previewing", "False", "NotStarted").await?;
    ensure!(stage.api::<PolicyRevision>().get_opt("experiment.cluster.e-1").await?.is_none());

    let started = stage.set_preview("e", true).await?;
    let candidate = stage.candidate("e", 1).await?;
    ensure!(candidate.spec.role == RevisionRole::Candidate && candidate.spec.enabled, "{candidate:#?}");
    ensure!(candidate.spec.data == experiment.spec.0.policy && candidate.spec.policy_ref.generation == 1);
    let of = candidate.spec.experiment_ref.clone().context("its experiment")?;
    ensure!((of.name.as_str(), Some(of.uid), of.generation) == ("e", experiment.uid(), 1));
    let labels = candidate.labels();
    ensure!(labels.get("proviso.dev/experiment-uid") == experiment.uid().as_ref(), "{labels:?}");
    ensure!(labels["proviso.dev/policy-server"] == "default" && !labels.contains_key("proviso.dev/policy-uid"));
    stage.until_told("e", "Previewing", "False", "Preparing").await?;
    stage.serve("experiment.cluster.e-1", POD).await?;
    let status = stage.until_told("e", "Previewing", "True", "Previewing").await?;
    ensure!(
        status.replicas.context("replicas")?.summary == "1/1"
            && state(&stage.experiment_status("e").await?) == Some(PreviewState::Active)
    );
    // It rides on the calls of its policy.
    ensure!(stage.webhooks().get_opt("proviso-preview-cluster.e").await?.is_none());
    stage.until_described("e", "Normal  Previewing").await?;

    stage.counted("experiment.cluster.e-1", 3).await?;
    let status = stage.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.evaluated == 4)).await?;
    let counts = status.divergence.context("counts")?;
    ensure!((counts.newly_denied, counts.same, counts.dropped) == (3, 1, 2), "{counts:?}");
    ensure!(counts.since.0.as_second() == started.start_time.0.as_second(), "{counts:?}");
    ensure!(status.samples.len() == 1 && status.samples[0].name == "password", "{:?}", status.samples);

    // What was counted stays when it is stopped, and begins anew when it is started.
    let stopped = stage.set_preview("e", false).await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    let status = stage.until_told("e", "Previewing", "False", "Suspended").await?;
    ensure!(status.divergence.is_some_and(|it| it.evaluated == 4) && status.replicas.is_none());
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.state == PreviewState::Suspended && metadata.stop_time.is_some(), "{metadata:?}");
    ensure!(stopped.start_time.0.as_second() == started.start_time.0.as_second());
    until_after(&started.start_time).await?;
    let again = stage.set_preview("e", true).await?;
    let candidate = stage.candidate("e", 1).await?;
    stage.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.evaluated == 0)).await?;
    // Also when it is started while it is previewed.
    until_after(&again.start_time).await?;
    stage.set_preview("e", true).await?;
    until("another candidate", PATIENCE, async || {
        ensure!(stage.candidate("e", 1).await?.uid() != candidate.uid());
        Ok(())
    })
    .await?;

    // An update suspends it, by whomever it was started.
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.counted("experiment.cluster.e-1", 7).await?;
    stage.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.newly_denied == 7)).await?;
    ensure!(stage.experiment("e", "a", &policy("2 < 3"), false).await? == 2);
    let status = stage.until_experiment("e", |it| state(it) == Some(PreviewState::Suspended)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.stop_time.is_some_and(|it| it >= metadata.start_time) && metadata.generation == 1);
    stage.until_no_revision("experiment.cluster.e-1").await?;
    stage.until_experiment("e", |it| it.divergence.is_none() && it.samples.is_empty()).await?;
    stage.until_described("e", "Normal  PreviewSuspended").await?;

    // It is of one policy.
    let moved = stage.experiment("e", "b", &policy("2 < 3"), false).await;
    ensure!(format!("{:#}", moved.err().context("it was moved")?).contains("an experiment is of one policy"));
    // What is deleted leaves nothing.
    stage.set_preview("e", true).await?;
    stage.candidate("e", 2).await?;
    stage.experiments().delete("e", &DeleteParams::default()).await?;
    stage.until_no_revision("experiment.cluster.e-2").await?;
    until("the end of the experiment", PATIENCE, async || {
        ensure!(stage.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_starts_by_itself_does_so_after_creation_and_after_each_update() -> Result<()> {
    let mut stage = Stage::serving("experiment-auto-start").await?;
    stage.live("a", "true").await?;
    stage.experiment("e", "a", &policy("1 < 2"), true).await?;
    let status = stage.until_experiment("e", |it| state(it) == Some(PreviewState::Active)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.generation == 1 && metadata.stop_time.is_none(), "{metadata:?}");
    ensure!(metadata.log_prefix == "PolicyPreviewLog");
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;

    stage.experiment("e", "a", &policy("2 < 3"), true).await?;
    let status =
        stage.until_experiment("e", |it| it.preview_metadata.as_ref().is_some_and(|it| it.generation == 2)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.state == PreviewState::Active && metadata.stop_time.is_some(), "{metadata:?}");
    let candidate = stage.candidate("e", 2).await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    stage.until_told("e", "Previewing", "False", "Preparing").await?;

    // Killed after it made the candidate and before it said so, the operator goes on where it was.
    stage.operators.clear();
    let nothing = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "status": {}});
    let as_operator = PatchParams::apply("proviso-operator").force();
    stage.experiments().patch_status("e", &as_operator, &Patch::Apply(nothing)).await?;
    ensure!(stage.experiment_status("e").await?.conditions.is_empty());
    stage.serve("experiment.cluster.e-2", POD).await?;
    stage.start_operator(&[])?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;
    ensure!(stage.candidate("e", 2).await?.uid() == candidate.uid(), "the candidate was made anew");

    // A program that does not work is told where its owner looks.
    stage.experiment("e", "a", &policy("3 < 4"), true).await?;
    stage.candidate("e", 3).await?;
    let failed = json!({"conditions": [{
        "type": "Initialized", "status": "False", "reason": "CompileError", "message": "spec.program.cel: no such thing",
        "lastTransitionTime": "2026-11-20T09:14:07Z",
    }]});
    let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": failed});
    let leader = PatchParams::apply("proviso-leader").force();
    stage.api::<PolicyRevision>().patch_status("experiment.cluster.e-3", &leader, &Patch::Apply(patch)).await?;
    stage.until_told("e", "Initialized", "False", "CompileError").await?;
    stage.until_described("e", "Warning  CompileError").await?;

    // Who stops it has the last word until the next update.
    stage.set_preview("e", false).await?;
    stage.until_told("e", "Previewing", "False", "Suspended").await?;
    stage.until_no_revision("experiment.cluster.e-3").await?;
    stage.annotate("clusterpolicyexperiment", "e", "example.com/note", "seen").await?;
    stage.live("a", "4 < 5").await?;
    ensure!(state(&stage.experiment_status("e").await?) == Some(PreviewState::Suspended));
    stage.experiment("e", "a", &policy("5 < 6"), true).await?;
    stage.candidate("e", 4).await?;
    Ok(())
}

#[tokio::test]
async fn an_operator_that_is_killed_at_any_step_leaves_nothing_behind() -> Result<()> {
    let mut stage = Stage::serving("experiment-killed").await?;
    stage.live("a", "true").await?;
    let webhook = "proviso-preview-cluster.e";
    // What is seen of each round before the operator is killed: less and less of what it has to do.
    for round in 0..4 {
        let spec = about(["pods", "services"][round % 2], &format!("{round} < 9"));
        let generation = stage.experiment("e", "a", &spec, true).await?;
        let candidate = format!("experiment.cluster.e-{generation}");
        if stage.operators.is_empty() {
            stage.start_operator(&[])?;
        }
        let is_started =
            |it: &ExperimentStatus| it.preview_metadata.as_ref().is_some_and(|it| it.generation == generation);
        stage.until_experiment("e", is_started).await?;
        if round < 3 {
            stage.candidate("e", generation).await?;
        }
        if round < 2 {
            stage.serve(&candidate, POD).await?;
        }
        if round < 1 {
            stage.until_path(webhook, &format!("/preview/cluster.a/e/{generation}")).await?;
        }
        stage.operators.clear();
    }
    // The last of these generations is what there is in the end, and nothing of the others.
    stage.start_operator(&[])?;
    stage.candidate("e", 4).await?;
    stage.serve("experiment.cluster.e-4", POD).await?;
    stage.until_path(webhook, "/preview/cluster.a/e/4").await?;
    for generation in 1..4 {
        stage.until_no_revision(&format!("experiment.cluster.e-{generation}")).await?;
    }
    // Also when it was told of the end, and came no further.
    stage.operators.clear();
    stage.kubectl.run(&["delete", "clusterpolicy", "a", "--wait=false"]).await?;
    stage.kubectl.run(&["delete", "clusterpolicyexperiment", "e", "--wait=false"]).await?;
    stage.start_operator(&[])?;
    stage.until_no_webhook(webhook).await?;
    stage.operators.clear();
    stage.start_operator(&[])?;
    until("everything to go", PATIENCE, async || {
        let revisions = stage.api::<PolicyRevision>().list(&ListParams::default()).await?.items;
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        ensure!(revisions.is_empty() && policies.get_opt("a").await?.is_none(), "{} revisions", revisions.len());
        ensure!(stage.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await
}
