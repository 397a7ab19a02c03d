//! The states of an experiment: started, stopped, suspended by an update, and continued by a restarted operator.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use proviso_crds::{ExperimentStatus, PolicyRevision, PreviewState, RevisionRole};
use proviso_e2e::{until, until_after};
use serde_json::json;

use super::{about, policy, state};
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

#[tokio::test]
async fn an_experiment_is_started_stopped_and_suspended_by_an_update() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-states").await?;
    cluster.make_live("a", "true").await?;
    cluster.apply_experiment("e", "a", &policy("1 < 2"), false).await?;
    let status = cluster.until_experiment_condition("e", "Accepted", "True", "Accepted").await?;
    ensure!(status.preview_metadata.is_none() && status.divergence.is_none(), "{status:#?}");
    let (experiment, live) =
        (cluster.experiments().get("e").await?, cluster.api::<PolicyRevision>().get("cluster.a-1").await?);
    let etag = |uid: Option<String>| Some(proviso_core::experiment::etag(&uid.unwrap(), 1));
    ensure!(status.etag == etag(experiment.uid()), "{status:#?}");
    ensure!(status.live_etag == etag(Some(live.spec.policy_ref.uid.clone())), "{status:#?}");
    cluster.until_experiment_condition("e", "Previewing", "False", "NotStarted").await?;
    ensure!(cluster.api::<PolicyRevision>().get_opt("experiment.cluster.e-1").await?.is_none());

    let started = cluster.set_preview("e", true).await?;
    let candidate = cluster.candidate("e", 1).await?;
    ensure!(candidate.spec.role == RevisionRole::Candidate && candidate.spec.enabled, "{candidate:#?}");
    ensure!(candidate.spec.data == experiment.spec.0.policy && candidate.spec.policy_ref.generation == 1);
    let of = candidate.spec.experiment_ref.clone().context("its experiment")?;
    ensure!((of.name.as_str(), Some(of.uid), of.generation) == ("e", experiment.uid(), 1));
    let labels = candidate.labels();
    ensure!(labels.get("proviso.dev/experiment-uid") == experiment.uid().as_ref(), "{labels:?}");
    ensure!(labels["proviso.dev/policy-server"] == "default" && !labels.contains_key("proviso.dev/policy-uid"));
    cluster.until_experiment_condition("e", "Previewing", "False", "Preparing").await?;
    cluster.serve("experiment.cluster.e-1", POD).await?;
    let status = cluster.until_experiment_condition("e", "Previewing", "True", "Previewing").await?;
    ensure!(state(&status) == Some(PreviewState::Active) && status.replicas.context("replicas")?.summary == "1/1");
    // The start is done, and stays done after a stop.
    let previewed = status.previewed_start_time.context("it was loaded")?;
    ensure!(previewed.0.as_second() == started.start_time.0.as_second(), "{previewed:?}");
    // The experiment shares the webhook of its policy.
    ensure!(cluster.webhooks().get_opt("proviso-preview-cluster.e").await?.is_none());
    cluster.until_described("e", "Normal  Previewing").await?;

    cluster.report_counts("experiment.cluster.e-1", 3).await?;
    let status = cluster.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.evaluated == 4)).await?;
    let counts = status.divergence.context("counts")?;
    ensure!((counts.newly_denied, counts.same, counts.dropped) == (3, 1, 2), "{counts:?}");
    ensure!(counts.since.0.as_second() == started.start_time.0.as_second(), "{counts:?}");
    ensure!((&counts.etag, &counts.live_etag) == (&status.etag, &status.live_etag), "{counts:?}");
    ensure!(status.samples.len() == 1 && status.samples[0].name == "password", "{:?}", status.samples);
    cluster.until_described("e", "Normal  FirstDivergence").await?;
    cluster.until_described("e", "NewlyDenied: a Secret in the namespace team from ann").await?;

    // A new live version is other evidence.
    cluster.make_live("a", "3 < 4").await?;
    let is_new = |it: &ExperimentStatus| {
        let counts = it.divergence.as_ref();
        it.live_etag != status.live_etag
            && counts.is_some_and(|counts| counts.evaluated == 0 && counts.live_etag == it.live_etag)
    };
    cluster.until_experiment("e", is_new).await?;
    cluster.report_counts("experiment.cluster.e-1", 4).await?;
    cluster.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.newly_denied == 4)).await?;

    // A stop waits for the final counts. They stay, and restart with a new start.
    let stopped = cluster.set_preview("e", false).await?;
    cluster.until_experiment_condition("e", "Previewing", "False", "Stopping").await?;
    cluster.until_disabled("experiment.cluster.e-1").await?;
    cluster.report_final_counts("experiment.cluster.e-1", 5).await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    let status = cluster.until_experiment_condition("e", "Previewing", "False", "Suspended").await?;
    ensure!(status.previewed_start_time.is_some() && status.replicas.is_none(), "{status:#?}");
    ensure!(status.divergence.is_some_and(|it| it.newly_denied == 5));
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.state == PreviewState::Suspended && metadata.stop_time.is_some(), "{metadata:?}");
    ensure!(metadata.stop_cause.is_none(), "{metadata:?}");
    ensure!(stopped.start_time.0.as_second() == started.start_time.0.as_second());
    until_after(&started.start_time).await?;
    let again = cluster.set_preview("e", true).await?;
    let candidate = cluster.candidate("e", 1).await?;
    cluster.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.evaluated == 0)).await?;
    // A second start during the preview creates another candidate.
    until_after(&again.start_time).await?;
    cluster.set_preview("e", true).await?;
    until("another candidate", TIMEOUT, async || {
        ensure!(cluster.candidate("e", 1).await?.uid() != candidate.uid());
        Ok(())
    })
    .await?;

    // An update suspends the preview.
    cluster.serve("experiment.cluster.e-1", POD).await?;
    cluster.report_counts("experiment.cluster.e-1", 7).await?;
    cluster.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.newly_denied == 7)).await?;
    ensure!(cluster.apply_experiment("e", "a", &policy("2 < 3"), false).await? == 2);
    let status = cluster.until_experiment("e", |it| state(it) == Some(PreviewState::Suspended)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.stop_time.is_some_and(|it| it >= metadata.start_time) && metadata.generation == 1);
    ensure!(cluster.until_suspended("e", "Updated").await?.message.contains("generation 1 was previewed"));
    cluster.until_disabled("experiment.cluster.e-1").await?;
    cluster.report_final_counts("experiment.cluster.e-1", 8).await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    cluster.until_experiment("e", |it| it.divergence.is_none() && it.samples.is_empty()).await?;
    cluster.until_described("e", "Normal  PreviewSuspended").await?;

    // The policy of an experiment cannot be changed.
    let moved = cluster.apply_experiment("e", "b", &policy("2 < 3"), false).await;
    ensure!(format!("{:#}", moved.err().context("it was moved")?).contains("an experiment belongs to one policy"));
    // A deleted experiment leaves no objects.
    cluster.set_preview("e", true).await?;
    cluster.candidate("e", 2).await?;
    cluster.experiments().delete("e", &DeleteParams::default()).await?;
    cluster.until_no_revision("experiment.cluster.e-2").await?;
    until("the end of the experiment", TIMEOUT, async || {
        ensure!(cluster.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn auto_start_starts_after_creation_and_after_each_update() -> Result<()> {
    let mut cluster = TestCluster::with_policy_server("experiment-auto-start").await?;
    cluster.make_live("a", "true").await?;
    cluster.apply_experiment("e", "a", &policy("1 < 2"), true).await?;
    let status = cluster.until_experiment("e", |it| state(it) == Some(PreviewState::Active)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.generation == 1 && metadata.stop_time.is_none(), "{metadata:?}");
    ensure!(metadata.log_prefix == "PolicyPreviewLog");
    cluster.serve("experiment.cluster.e-1", POD).await?;
    cluster.until_experiment_condition("e", "Previewing", "True", "Previewing").await?;

    cluster.apply_experiment("e", "a", &policy("2 < 3"), true).await?;
    let status =
        cluster.until_experiment("e", |it| it.preview_metadata.as_ref().is_some_and(|it| it.generation == 2)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.state == PreviewState::Active && metadata.stop_time.is_some(), "{metadata:?}");
    let candidate = cluster.candidate("e", 2).await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    cluster.until_experiment_condition("e", "Previewing", "False", "Preparing").await?;

    // An operator that was killed between the candidate and the status continues after its restart.
    cluster.operators.clear();
    let nothing = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "status": {}});
    let as_operator = PatchParams::apply("proviso-operator").force();
    cluster.experiments().patch_status("e", &as_operator, &Patch::Apply(nothing)).await?;
    ensure!(cluster.experiment_status("e").await?.conditions.is_empty());
    cluster.serve("experiment.cluster.e-2", POD).await?;
    cluster.start_operator(&[])?;
    cluster.until_experiment_condition("e", "Previewing", "True", "Previewing").await?;
    ensure!(cluster.candidate("e", 2).await?.uid() == candidate.uid(), "the candidate was created again");

    // The status and an Event of the experiment report a program that does not compile.
    cluster.apply_experiment("e", "a", &policy("3 < 4"), true).await?;
    cluster.candidate("e", 3).await?;
    cluster.fail_preparation("experiment.cluster.e-3").await?;
    ensure!(cluster.until_suspended("e", "CompileError").await?.message == "no such thing");
    cluster.until_described("e", "Warning  CompileError").await?;

    // A stopped experiment stays stopped until the next update.
    cluster.set_preview("e", false).await?;
    cluster.until_experiment_condition("e", "Previewing", "False", "Suspended").await?;
    cluster.until_no_revision("experiment.cluster.e-3").await?;
    cluster.annotate("clusterpolicyexperiment", "e", "example.com/note", "seen").await?;
    cluster.make_live("a", "4 < 5").await?;
    ensure!(state(&cluster.experiment_status("e").await?) == Some(PreviewState::Suspended));
    cluster.apply_experiment("e", "a", &policy("5 < 6"), true).await?;
    cluster.candidate("e", 4).await?;
    Ok(())
}

#[tokio::test]
async fn an_operator_killed_at_any_step_leaves_no_orphans() -> Result<()> {
    let mut cluster = TestCluster::with_policy_server("experiment-killed").await?;
    cluster.make_live("a", "true").await?;
    let webhook = "proviso-preview-cluster.e";
    // Each round kills the operator at an earlier step.
    for round in 0..4 {
        let spec = about(["pods", "services"][round % 2], &format!("{round} < 9"));
        let generation = cluster.apply_experiment("e", "a", &spec, true).await?;
        let candidate = format!("experiment.cluster.e-{generation}");
        if cluster.operators.is_empty() {
            cluster.start_operator(&[])?;
        }
        let is_started =
            |it: &ExperimentStatus| it.preview_metadata.as_ref().is_some_and(|it| it.generation == generation);
        cluster.until_experiment("e", is_started).await?;
        if round < 3 {
            cluster.candidate("e", generation).await?;
        }
        if round < 2 {
            cluster.serve(&candidate, POD).await?;
        }
        if round < 1 {
            cluster.until_path(webhook, &format!("/preview/cluster.a/e/{generation}")).await?;
        }
        cluster.operators.clear();
    }
    // In the end only the objects of the last generation exist.
    cluster.start_operator(&[])?;
    cluster.candidate("e", 4).await?;
    cluster.serve("experiment.cluster.e-4", POD).await?;
    cluster.until_path(webhook, "/preview/cluster.a/e/4").await?;
    for generation in 1..4 {
        cluster.until_no_revision(&format!("experiment.cluster.e-{generation}")).await?;
    }
    // An operator that is killed during the deletion leaves no objects either.
    cluster.operators.clear();
    cluster.kubectl.run(&["delete", "clusterpolicy", "a", "--wait=false"]).await?;
    cluster.kubectl.run(&["delete", "clusterpolicyexperiment", "e", "--wait=false"]).await?;
    cluster.start_operator(&[])?;
    cluster.until_no_webhook(webhook).await?;
    cluster.operators.clear();
    cluster.start_operator(&[])?;
    until("everything to go", TIMEOUT, async || {
        let revisions = cluster.api::<PolicyRevision>().list(&ListParams::default()).await?.items;
        let policies = cluster.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        ensure!(revisions.is_empty() && policies.get_opt("a").await?.is_none(), "{} revisions", revisions.len());
        ensure!(cluster.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await
}
