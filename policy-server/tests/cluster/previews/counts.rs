//! The counts of candidates: a change of the live generation, the end of a preview, and the requests that are chosen.

use anyhow::{Result, ensure};
use proviso_core::experiment::etag;
use proviso_core::sampling::is_sampled;
use proviso_crds::PreviewReport;
use serde_json::{Value, json};

use super::{NEVER, Previews as _, candidate, lines, make_live, only, preview, until_line, until_loaded};
use crate::support::cluster::{TestEnv, condition, revision};
use crate::support::{forbid, pod, rego};

#[tokio::test]
async fn a_new_live_generation_starts_new_counts() -> Result<()> {
    let env = TestEnv::start("previews-of-two-live-generations").await?;
    let server = env.replica("pod-1").await?;
    env.create(&revision("a", 1, &forbid(NEVER, ""))).await?;
    env.create(&revision("a", 2, &forbid("true", "one"))).await?;
    env.create(&candidate("a", "e", &forbid("true", "two"))).await?;
    let name = "experiment.cluster.e-1";
    for name in ["cluster.a-1", "cluster.a-2", name] {
        until_loaded(&server, name).await;
    }
    make_live(&env, &server, "cluster.a", 1).await?;
    for uid in ["1", "2", "3"] {
        ensure!(server.post("/validate/cluster.a/1", pod(uid, "x").to_string()).await.is_allowed());
    }
    let first = env.until_counted(name, |it| it.evaluated == 3).await?;
    ensure!(first.counts.newly_denied == 3 && first.samples.len() == 1, "{first:?}");
    ensure!(first.counts.etag == Some(etag("uid-e", 1)), "{first:?}");
    ensure!(first.counts.live_etag == Some(etag("uid-a", 1)), "{first:?}");

    env.set_condition("cluster.a-1", "Live", "False").await?;
    make_live(&env, &server, "cluster.a", 2).await?;
    // Some API servers still call the old generation. Its request is logged with its etag, and is not mixed into the new counts.
    ensure!(server.post("/validate/cluster.a/1", pod("old", "x").to_string()).await.is_allowed());
    for uid in ["4", "5"] {
        ensure!(!server.post("/validate/cluster.a/2", pod(uid, "x").to_string()).await.is_allowed());
    }
    ensure!(until_line(&server, "e", "old").await?["liveEtag"] == etag("uid-a", 1));
    let second = env.until_counted(name, |it| it.live_etag != first.counts.live_etag && it.evaluated >= 2).await?;
    ensure!(second.counts.live_etag == Some(etag("uid-a", 2)), "{second:?}");
    ensure!((second.counts.evaluated, second.counts.message_differs) == (2, 2), "{second:?}");
    ensure!(second.counts.etag == first.counts.etag && second.counts.since >= first.counts.since, "{second:?}");
    ensure!(second.samples.len() == 1 && second.samples[0].count == 2, "{second:?}");

    // No generation is live any more.
    env.set_condition("cluster.a-2", "Live", "False").await?;
    let third = env.until_counted(name, |it| it.live_etag.is_none()).await?;
    ensure!(third.counts.evaluated == 0 && third.samples.is_empty(), "{third:?}");
    Ok(())
}

#[tokio::test]
async fn a_disabled_candidate_reports_its_final_counts_and_is_not_previewed_any_more() -> Result<()> {
    let env = TestEnv::start("previews-that-stop").await?;
    let server = env.replica("pod-1").await?;
    env.create(&revision("a", 1, &forbid(NEVER, ""))).await?;
    env.create(&candidate("a", "stopped", &forbid("true", "x"))).await?;
    env.create(&candidate("a", "running", &forbid("true", "x"))).await?;
    let (name, path) = ("experiment.cluster.stopped-1", "/validate/cluster.a/1");
    for name in ["cluster.a-1", name, "experiment.cluster.running-1"] {
        until_loaded(&server, name).await;
    }
    make_live(&env, &server, "cluster.a", 1).await?;
    let requests = 50;
    for _ in 0..requests {
        ensure!(server.post(path, pod("before", "x").to_string()).await.is_allowed());
    }
    env.enable(name, false).await?;
    let status = env.until_reported(name, "pod-1", "True", "Suspended").await?;
    let report: PreviewReport = serde_json::from_value(status["replicas"][0]["preview"].clone())?;
    let counts = &report.counts;
    ensure!((counts.evaluated, counts.newly_denied, counts.dropped) == (requests, requests, 0), "{counts:?}");
    ensure!(lines(&server.previews(), "stopped").len() == usize::try_from(requests)?);
    server.until_details(&format!("[ ] {name} loaded, and not previewed: it is disabled")).await;

    // The other experiment is previewed on the next requests.
    ensure!(server.post(path, pod("after", "x").to_string()).await.is_allowed());
    preview(&server, "stopped", &pod("after", "x")).await?;
    until_line(&server, "running", "after").await?;
    ensure!(lines(&server.previews(), "stopped").iter().all(|line| line["request"]["uid"] == "before"));
    ensure!(env.report(name).await? == report);
    ensure!(server.drops().is_empty(), "{:#?}", server.drops());
    Ok(())
}

#[tokio::test]
async fn a_disabled_candidate_is_prepared_and_loaded() -> Result<()> {
    let env = TestEnv::start("previews-that-never-start").await?;
    let server = env.replica("pod-1").await?;
    let disabled = |mut candidate: Value| {
        candidate["spec"]["enabled"] = json!(false);
        candidate
    };
    env.create(&revision("a", 1, &forbid(NEVER, ""))).await?;
    env.create(&disabled(candidate("a", "works", &forbid("true", "x")))).await?;
    env.create(&disabled(candidate("a", "broken", &rego("package test\ndeny contains")))).await?;
    env.until_initialized("experiment.cluster.works-1").await?;
    let status = env.until_reported("experiment.cluster.works-1", "pod-1", "True", "Suspended").await?;
    ensure!(status["replicas"][0]["preview"].is_null(), "{status:#}");
    let status = env.until_reported("experiment.cluster.broken-1", "pod-1", "False", "CompileError").await?;
    let initialized = condition(&status, "Initialized")?;
    ensure!(initialized["status"] == "False" && initialized["reason"] == "CompileError", "{status:#}");

    // A later start enables the candidate.
    env.enable("experiment.cluster.works-1", true).await?;
    env.until_reported("experiment.cluster.works-1", "pod-1", "True", "Loaded").await?;
    make_live(&env, &server, "cluster.a", 1).await?;
    ensure!(server.post("/validate/cluster.a/1", pod("u", "x").to_string()).await.is_allowed());
    env.until_counted("experiment.cluster.works-1", |it| it.evaluated == 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_candidate_selects_the_requests_that_are_previewed_and_logged() -> Result<()> {
    let env = TestEnv::start("previews-with-settings").await?;
    let server = env.replica("pod-1").await?;
    let with_settings = |mut candidate: Value, settings: Value| {
        candidate["spec"]["preview"] = settings;
        candidate
    };
    env.create(&revision("a", 1, &forbid(NEVER, ""))).await?;
    let half = json!({"sampleRate": 0.5, "logging": "All"});
    env.create(&with_settings(candidate("a", "half", &forbid(NEVER, "")), half)).await?;
    let quiet = json!({"sampleRate": 1, "logging": "Divergences"});
    let bad = forbid("input.request.name == \"bad\"", "no");
    env.create(&with_settings(candidate("a", "quiet", &bad), quiet)).await?;
    for name in ["cluster.a-1", "experiment.cluster.half-1", "experiment.cluster.quiet-1"] {
        until_loaded(&server, name).await;
    }
    make_live(&env, &server, "cluster.a", 1).await?;
    let uids: Vec<String> = (0..60).map(|number| format!("7f0c-{number}")).collect();
    for (number, uid) in uids.iter().enumerate() {
        let name = if number % 20 == 0 { "bad" } else { "good" };
        ensure!(server.post("/validate/cluster.a/1", pod(uid, name).to_string()).await.is_allowed());
    }

    let sample: Vec<&String> = uids.iter().filter(|uid| is_sampled(uid, 0.5)).collect();
    let expected = u64::try_from(sample.len())?;
    ensure!((10..50).contains(&expected), "{expected}");
    let counts = env.until_counted("experiment.cluster.quiet-1", |it| it.evaluated == 60).await?.counts;
    ensure!((counts.same, counts.newly_denied, counts.dropped) == (57, 3, 0), "{counts:?}");
    let counts = env.until_counted("experiment.cluster.half-1", |it| it.evaluated >= expected).await?.counts;
    ensure!((counts.evaluated, counts.same, counts.dropped) == (expected, expected, 0), "{counts:?}");

    let written = server.previews();
    let half = lines(&written, "half");
    ensure!(half.len() == sample.len() && half.iter().all(|line| line["sampleRate"] == 0.5), "{half:#?}");
    ensure!(half.iter().all(|line| sample.iter().any(|uid| line["request"]["uid"] == **uid)), "{half:#?}");
    let quiet = lines(&written, "quiet");
    ensure!(quiet.len() == 3 && quiet.iter().all(|line| line["divergence"] == "NewlyDenied"), "{quiet:#?}");
    ensure!(quiet.iter().all(|line| line["sampleRate"].is_null()), "{quiet:#?}");
    Ok(())
}

// The webhook of an experiment must not stop a request, nor fail it: the review is larger than the limit of 20 MiB.
#[tokio::test]
async fn a_review_that_is_too_large_is_allowed_and_counted_as_dropped() -> Result<()> {
    let env = TestEnv::start("previews-of-large-reviews").await?;
    let server = env.replica("pod-1").await?;
    env.create(&revision("a", 1, &only("pods", forbid(NEVER, "")))).await?;
    env.create(&candidate("a", "e", &only("services", forbid("true", "")))).await?;
    let name = "experiment.cluster.e-1";
    for name in ["cluster.a-1", name] {
        until_loaded(&server, name).await;
    }
    make_live(&env, &server, "cluster.a", 1).await?;
    let review = format!(r#"{{"request":{{"uid":"large","object":"{}"}}}}"#, "<".repeat(21 << 20));
    let answer = server.post("/preview/cluster.a/e/1", review).await;
    ensure!(answer.is_allowed() && answer.response()["uid"] == "large", "{}", answer.text);
    env.until_counted(name, |it| (it.dropped, it.evaluated) == (1, 0)).await?;
    Ok(())
}
