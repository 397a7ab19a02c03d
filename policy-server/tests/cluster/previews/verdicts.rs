//! The verdicts of candidates: `matchConditions` that hold, exclude a request, or fail, and the mode Monitor.

use anyhow::{Result, ensure};
use proviso_e2e::until;
use serde_json::{Value, json};

use super::{NEVER, Previews as _, candidate, lines, make_live, preview, preview_of, until_line, until_loaded};
use crate::support::cluster::{TestEnv, revision};
use crate::support::{WAIT_TIMEOUT, forbid, pod, with};

/// Returns the spec with these members of `admission`.
fn admitting(spec: Value, admission: &Value) -> Value {
    with(spec, &json!({"admission": admission}))
}

#[tokio::test]
async fn match_conditions_of_policy_and_candidate_are_evaluated() -> Result<()> {
    let env = TestEnv::start("previews-with-conditions").await?;
    let server = env.replica("pod-1").await?;
    let except = |name: &str, spec: Value| {
        let condition = json!([{"name": "a", "expression": format!("request.name != '{name}'")}]);
        with(spec, &json!({"admission": {"matchConditions": condition}}))
    };
    env.create(&revision("a", 1, &except("exempt", forbid("true", "one")))).await?;
    env.create(&candidate("a", "other", &except("skipped", forbid("true", "one")))).await?;
    env.create(&candidate("a", "alike", &except("exempt", forbid("true", "two")))).await?;
    // Only an API server can evaluate a condition with the `authorizer`.
    let unknown = json!({"admission": {"matchConditions": [
        {"name": "a", "expression": "authorizer.group('').resource('pods').check('create').allowed()"},
    ]}});
    env.create(&candidate("a", "authorized", &with(forbid("true", "one"), &unknown))).await?;
    env.set_condition("cluster.a-1", "Live", "True").await?;
    for name in ["cluster.a-1", "experiment.cluster.other-1", "experiment.cluster.alike-1"] {
        until_loaded(&server, name).await;
    }
    until_loaded(&server, "experiment.cluster.authorized-1").await;
    until("the live generation to be known", WAIT_TIMEOUT, async || {
        preview(&server, "authorized", &pod("known", "x")).await?;
        ensure!(server.previews().iter().any(|line| line["liveGeneration"] == 1));
        Ok(())
    })
    .await?;

    // The API server calls neither the policy nor the experiment for a request that their conditions exclude.
    for name in ["exempt", "both"] {
        preview(&server, "other", &pod(name, name)).await?;
    }
    for name in ["skipped", "both"] {
        ensure!(!server.post("/validate/cluster.a/1", pod(name, name).to_string()).await.is_allowed());
    }
    // The webhook of the experiment has no conditions: the replica leaves out the request, which counts already.
    preview(&server, "other", &pod("skipped", "skipped")).await?;
    for (uid, divergence) in [("exempt", "NewlyDenied"), ("both", "Same"), ("skipped", "NewlyAllowed")] {
        let line = until_line(&server, "other", uid).await?;
        ensure!(line["divergence"] == divergence, "{uid}: {line}");
    }
    for uid in ["skipped", "both"] {
        until_line(&server, "alike", uid).await?;
    }
    let report = env.until_counted("experiment.cluster.other-1", |it| it.evaluated >= 3).await?;
    ensure!(report.counts.evaluated == 3 && lines(&server.previews(), "other").len() == 3, "{report:?}");
    ensure!(lines(&server.previews(), "alike").len() == 2);
    ensure!(lines(&server.previews(), "authorized").iter().all(|line| line["request"]["uid"] == "known"));
    Ok(())
}

#[tokio::test]
async fn a_match_condition_that_fails_counts_as_it_would_once_live() -> Result<()> {
    let env = TestEnv::start("previews-with-failing-conditions").await?;
    let server = env.replica("pod-1").await?;
    // A Pod has no replicas.
    let failing = json!({"name": "failing", "expression": "object.spec.replicas > 1"});
    let fail = json!({"matchConditions": [failing]});
    let ignore = json!({"matchConditions": [failing], "failurePolicy": "Ignore"});
    let excluded = json!({"matchConditions": [failing, {"name": "false", "expression": "request.name == 'other'"}]});
    env.create(&revision("a", 1, &forbid(NEVER, ""))).await?;
    env.create(&candidate("a", "closed", &admitting(forbid(NEVER, ""), &fail))).await?;
    env.create(&candidate("a", "open", &admitting(forbid("true", "x"), &ignore))).await?;
    env.create(&candidate("a", "excluded", &admitting(forbid("true", "x"), &excluded))).await?;
    // The experiment has the conditions of the policy, and another failure policy.
    env.create(&revision("b", 1, &admitting(forbid(NEVER, ""), &ignore))).await?;
    env.create(&candidate("b", "stricter", &admitting(forbid(NEVER, ""), &fail))).await?;
    // The conditions of the live policy fail.
    env.create(&revision("c", 1, &admitting(forbid(NEVER, ""), &fail))).await?;
    env.create(&candidate("c", "lax", &forbid(NEVER, ""))).await?;
    for name in ["cluster.closed", "cluster.open", "cluster.excluded", "cluster.stricter", "cluster.lax"] {
        until_loaded(&server, &format!("experiment.{name}-1")).await;
    }
    for policy in ["a", "b", "c"] {
        until_loaded(&server, &format!("cluster.{policy}-1")).await;
        make_live(&env, &server, &format!("cluster.{policy}"), 1).await?;
    }

    // The API server sends each request to the webhooks of the policy and of the experiments.
    for experiment in ["closed", "open", "excluded"] {
        preview(&server, experiment, &pod("own", "x")).await?;
    }
    ensure!(server.post("/validate/cluster.a/1", pod("policy", "x").to_string()).await.is_allowed());
    let line = until_line(&server, "closed", "own").await?;
    ensure!(line["divergence"] == "NewlyDenied" && line["live"]["allowed"] == true, "{line}");
    let denied = &line["preview"];
    ensure!(denied["allowed"] == false && denied["code"] == 403 && denied["reason"] == "Forbidden", "{line}");
    ensure!(denied["error"] == "Failed", "{line}");
    ensure!(denied["message"].as_str().is_some_and(|it| it.starts_with("spec.admission.matchConditions: ")), "{line}");
    for experiment in ["open", "excluded"] {
        let line = until_line(&server, experiment, "policy").await?;
        ensure!(line["divergence"] == "Same" && line["preview"]["allowed"] == true, "{line}");
    }
    // Each request counts once.
    let report = env.until_counted("experiment.cluster.closed-1", |it| it.evaluated > 0).await?;
    let counts = &report.counts;
    ensure!((counts.evaluated, counts.newly_denied, counts.errors, counts.dropped) == (1, 1, 1, 0), "{report:?}");
    ensure!(report.samples.len() == 1 && report.samples[0].message.contains("matchConditions"), "{report:?}");
    for experiment in ["open", "excluded"] {
        let name = format!("experiment.cluster.{experiment}-1");
        let counts = env.until_counted(&name, |it| it.evaluated > 0).await?.counts;
        ensure!((counts.evaluated, counts.same, counts.errors) == (1, 1, 0), "{counts:?}");
    }

    let mut scaled = pod("scaled", "x");
    scaled["request"]["object"]["spec"]["replicas"] = json!(2);
    for review in [&pod("own", "x"), &scaled] {
        preview_of(&server, "b", "stricter", review).await?;
    }
    ensure!(server.post("/validate/cluster.b/1", scaled.to_string()).await.is_allowed());
    ensure!(until_line(&server, "stricter", "own").await?["divergence"] == "NewlyDenied");
    ensure!(until_line(&server, "stricter", "scaled").await?["divergence"] == "Same");
    let report = env.until_counted("experiment.cluster.stricter-1", |it| it.evaluated >= 2).await?;
    ensure!((report.counts.evaluated, report.counts.newly_denied, report.counts.same) == (2, 1, 1), "{report:?}");

    preview_of(&server, "c", "lax", &pod("own", "x")).await?;
    let line = until_line(&server, "lax", "own").await?;
    ensure!(line["divergence"] == "NewlyAllowed" && line["live"]["code"] == 403, "{line}");
    Ok(())
}

#[tokio::test]
async fn two_versions_in_the_mode_monitor_are_compared_by_what_they_would_enforce() -> Result<()> {
    let env = TestEnv::start("previews-in-the-mode-monitor").await?;
    let server = env.replica("pod-1").await?;
    let monitor = json!({"mode": "Monitor"});
    env.create(&revision("a", 1, &admitting(forbid("input.request.name == \"bad\"", "one"), &monitor))).await?;
    env.create(&candidate("a", "monitored", &admitting(forbid("true", "two"), &monitor))).await?;
    env.create(&candidate("a", "protecting", &forbid("true", "two"))).await?;
    for name in ["cluster.a-1", "experiment.cluster.monitored-1", "experiment.cluster.protecting-1"] {
        until_loaded(&server, name).await;
    }
    make_live(&env, &server, "cluster.a", 1).await?;
    for name in ["good", "bad"] {
        ensure!(server.post("/validate/cluster.a/1", pod(name, name).to_string()).await.is_allowed());
    }
    let good = until_line(&server, "monitored", "good").await?;
    ensure!(good["divergence"] == "NewlyDenied" && good["monitored"] == true, "{good}");
    ensure!(good["live"]["allowed"] == true && good["preview"]["allowed"] == false, "{good}");
    let bad = until_line(&server, "monitored", "bad").await?;
    ensure!(bad["divergence"] == "MessageDiffers" && bad["monitored"] == true, "{bad}");
    ensure!(bad["live"]["message"] == "one" && bad["preview"]["message"] == "two", "{bad}");
    for uid in ["good", "bad"] {
        // The live policy allowed both requests, and the experiment would deny them.
        let line = until_line(&server, "protecting", uid).await?;
        ensure!(line["divergence"] == "NewlyDenied" && line["monitored"].is_null(), "{line}");
        ensure!(line["live"]["allowed"] == true, "{line}");
    }
    let counts = env.until_counted("experiment.cluster.monitored-1", |it| it.evaluated == 2).await?.counts;
    ensure!((counts.newly_denied, counts.message_differs) == (1, 1), "{counts:?}");
    Ok(())
}
