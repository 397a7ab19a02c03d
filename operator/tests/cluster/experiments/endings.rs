//! Previews that the operator suspends: starts that fail, and previews at the end of their lives.

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use proviso_crds::PreviewState;
use proviso_e2e::{until, until_after};
use serde_json::json;

use super::{policy, state};
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

#[tokio::test]
async fn a_start_that_fails_is_suspended_with_its_cause_and_repeated_when_the_cause_is_gone() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-failures").await?;
    // The policy does not exist.
    cluster.apply_experiment("early", "later", &policy("1 < 2"), true).await?;
    cluster.until_experiment_condition("early", "Accepted", "False", "PolicyNotFound").await?;
    cluster.set_preview("early", true).await?;
    let cause = cluster.until_suspended("early", "PolicyNotFound").await?;
    ensure!(cause.message.contains("there is no policy cluster.later"), "{cause:?}");
    cluster.until_described("early", "Warning  PolicyNotFound").await?;
    cluster.make_live("later", "true").await?;
    cluster.until_experiment("early", |it| state(it) == Some(PreviewState::Active)).await?;
    cluster.candidate("early", 1).await?;

    // The policy has too many experiments.
    cluster.make_live("a", "true").await?;
    for number in 0..10 {
        cluster.apply_experiment(&format!("e{number}"), "a", &policy("1 < 2"), false).await?;
    }
    let last = cluster.experiments().get("e9").await?.metadata.creation_timestamp.context("its age")?;
    until_after(&last).await?;
    cluster.apply_experiment("eleventh", "a", &policy("1 < 2"), false).await?;
    cluster.until_experiment_condition("eleventh", "Accepted", "False", "TooMany").await?;
    cluster.set_preview("eleventh", true).await?;
    cluster.until_suspended("eleventh", "TooMany").await?;

    // The program does not compile.
    cluster.set_preview("e0", true).await?;
    cluster.candidate("e0", 1).await?;
    cluster.fail_preparation("experiment.cluster.e0-1").await?;
    let cause = cluster.until_suspended("e0", "CompileError").await?;
    ensure!(cause.message == "no such thing", "{cause:?}");
    cluster.until_no_revision("experiment.cluster.e0-1").await?;
    let status = cluster.until_experiment_condition("e0", "Previewing", "False", "Suspended").await?;
    ensure!(status.previewed_start_time.is_none(), "{status:#?}");

    // No replica is Ready. A preview that was loaded before goes on.
    cluster.set_preview("e1", true).await?;
    cluster.candidate("e1", 1).await?;
    cluster.serve("experiment.cluster.e1-1", POD).await?;
    cluster.until_experiment_condition("e1", "Previewing", "True", "Previewing").await?;
    cluster.set_pod_status(POD, json!({"conditions": [{"type": "Ready", "status": "False"}]})).await?;
    cluster.until_experiment_condition("e1", "Previewing", "False", "NoReplicas").await?;
    cluster.apply_experiment("e2", "a", &policy("2 < 3"), true).await?;
    cluster.until_experiment_condition("e2", "Previewing", "False", "NoReplicas").await?;
    cluster.until_suspended("e2", "NoReplicas").await?;
    cluster.until_no_revision("experiment.cluster.e2-2").await?;
    ensure!(state(&cluster.experiment_status("e1").await?) == Some(PreviewState::Active));
    cluster.make_ready(POD).await?;
    cluster.until_experiment("e2", |it| state(it) == Some(PreviewState::Active)).await?;
    cluster.serve("experiment.cluster.e2-2", POD).await?;
    cluster.until_experiment_condition("e2", "Previewing", "True", "Previewing").await?;
    Ok(())
}

#[tokio::test]
async fn a_preview_announces_its_end_and_stays_suspended_until_the_experiment_changes() -> Result<()> {
    let cluster = TestCluster::with_policy_server("experiment-expiry").await?;
    cluster.make_live("a", "true").await?;
    cluster.apply_experiment("e", "a", &policy("1 < 2"), true).await?;
    cluster.candidate("e", 1).await?;
    cluster.serve("experiment.cluster.e-1", POD).await?;
    let status = cluster.until_experiment_condition("e", "Previewing", "True", "Previewing").await?;
    let metadata = status.preview_metadata.context("metadata")?;
    let life = metadata.expire_time.context("no end")?.0.duration_since(metadata.start_time.0);
    ensure!(life == SignedDuration::from_hours(14 * 24), "{life}");

    // The preview was started two weeks ago, so that its end is announced.
    let before = cluster.candidate("e", 1).await?.uid();
    let end = Timestamp::now() + SignedDuration::from_secs(20);
    let patch = json!({"status": {"previewMetadata": {"startTime": Time(end - life), "expireTime": Time(end)}}});
    cluster.experiments().patch_status("e", &PatchParams::default(), &Patch::Merge(patch)).await?;
    until("the candidate of this start", TIMEOUT, async || {
        ensure!(cluster.candidate("e", 1).await?.uid() != before);
        Ok(())
    })
    .await?;
    cluster.serve("experiment.cluster.e-1", POD).await?;
    cluster.until_described("e", "Normal  PreviewExpires").await?;
    let cause = cluster.until_suspended("e", "Expired").await?;
    ensure!(cause.message.contains("spec.ttl"), "{cause:?}");
    // The replica is silent: the stop does not wait for it forever.
    cluster.until_experiment_condition("e", "Previewing", "False", "Stopping").await?;
    cluster.until_no_revision("experiment.cluster.e-1").await?;
    cluster.until_experiment_condition("e", "Previewing", "False", "Suspended").await?;
    cluster.make_live("a", "2 < 3").await?;
    ensure!(state(&cluster.experiment_status("e").await?) == Some(PreviewState::Suspended));
    cluster.apply_experiment("e", "a", &policy("3 < 4"), true).await?;
    cluster.until_experiment("e", |it| state(it) == Some(PreviewState::Active)).await?;
    Ok(())
}
