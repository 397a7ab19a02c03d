//! Tests of replicas and the revisions of a real API server: each revision is loaded, reported and unloaded separately, and
//! loaded revisions keep serving while the API server is down.

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use kube::api::DeleteParams;
use proviso_e2e::until;
use serde_json::json;

use crate::support::cluster::{TestEnv, ask, condition, revision, until_answered, until_unloaded};
use crate::support::{WAIT_TIMEOUT, cel, forbid, with};

#[tokio::test]
async fn generations_are_loaded_and_unloaded_separately() -> Result<()> {
    let env = TestEnv::start("generations-beside-each-other").await?;
    let server = env.replica("pod-1").await?;
    let (first, second) = ("/validate/cluster.a/1", "/validate/cluster.a/2");
    ensure!(ask(&server, first).await.status == StatusCode::NOT_FOUND, "the policy does not exist");

    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    until_answered(&server, first, "one").await?;
    let status = env.until_reported("cluster.a-1", "pod-1", "True", "Loaded").await?;
    ensure!(status["replicas"][0]["serverVersion"] == env!("CARGO_PKG_VERSION"), "{status:#}");
    let initialized = condition(&status, "Initialized")?;
    ensure!(initialized["status"] == "True" && initialized["reason"] == "Prepared", "{initialized}");
    ensure!(initialized["observedGeneration"] == 1, "{initialized}");

    let answer = ask(&server, second).await;
    ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.headers["retry-after"] == "1");
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    until_answered(&server, second, "two").await?;
    until_answered(&server, first, "one").await?;

    // The path of the webhook selects the generation. A gauge has the live generation.
    let live = async || server.count("proviso_policy_live_generation", &["policy=\"cluster.a\""]).await;
    env.set_condition("cluster.a-2", "Live", "True").await?;
    server.until("the gauge of the live generation", async || live().await == 2).await;
    let answer = ask(&server, "/validate/cluster.a").await;
    ensure!(answer.status == StatusCode::NOT_FOUND, "{}", answer.text);
    ensure!(answer.text.contains("/validate/cluster.a/<generation>"), "{}", answer.text);

    env.enable("cluster.a-1", false).await?;
    until_unloaded(&server, first).await?;
    until_answered(&server, second, "two").await?;
    until("the status of the disabled revision without replicas", WAIT_TIMEOUT, async || {
        let status = &env.revisions.get("cluster.a-1").await?.data["status"];
        ensure!(status["replicas"].as_array().is_none_or(Vec::is_empty), "{status:#}");
        Ok(())
    })
    .await?;
    server.until_details("[ ] cluster.a-1 disabled\n[+] cluster.a-2 loaded\n").await;
    env.enable("cluster.a-1", true).await?;
    until_answered(&server, first, "one").await?;
    env.until_reported("cluster.a-1", "pod-1", "True", "Loaded").await?;

    for name in ["cluster.a-1", "cluster.a-2"] {
        env.revisions.delete(name, &DeleteParams::default()).await?;
    }
    until("the policy to be removed", WAIT_TIMEOUT, async || {
        ensure!(ask(&server, second).await.status == StatusCode::NOT_FOUND);
        Ok(())
    })
    .await?;
    let has_series = async || server.get("/metrics").await.text.contains("proviso_policy_live_generation{");
    server.until("no series of the removed policy", async || !has_series().await).await;
    Ok(())
}

#[tokio::test]
async fn a_failed_revision_reports_its_reason_and_others_keep_serving() -> Result<()> {
    let env = TestEnv::start_dedicated("revisions-that-do-not-work").await?;
    let server = env.replica("pod-1").await?;
    env.create(&revision("good", 1, &forbid("true", "good"))).await?;
    until_answered(&server, "/validate/cluster.good/1", "good").await?;

    let wasm = |module: &str| json!({"program": {"wasm": {"module": module}}});
    for (name, spec, reason, message) in [
        ("typo", cel("object.metadata.(", "no"), "CompileError", "spec.program.cel"),
        ("remote", wasm("https://127.0.0.1:1/a.wasm"), "PullError", "127.0.0.1:1"),
        ("capable", with(cel("true", ""), &json!({"hostCapabilities": ["a"]})), "Invalid", "spec.hostCapabilities[0]"),
    ] {
        env.create(&revision(name, 1, &spec)).await?;
        let status = env.until_reported(&format!("cluster.{name}-1"), "pod-1", "False", reason).await?;
        for reported in [&status["replicas"][0]["message"], &condition(&status, "Initialized")?["message"]] {
            ensure!(reported.as_str().unwrap().contains(message), "{name}: {reported}");
        }
        let initialized = condition(&status, "Initialized")?;
        ensure!(initialized["status"] == "False" && initialized["reason"] == reason, "{initialized}");
        // An HTTP error would let the request pass under `failurePolicy: Ignore`.
        let answer = ask(&server, &format!("/validate/cluster.{name}/1")).await;
        ensure!(!answer.is_allowed() && answer.message().contains(message), "{}", answer.text);
    }

    // A revision that this version of the CRD refuses, as if it came from another version. So remove the schema first.
    let anything = json!([{
        "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
        "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }]);
    let patch = anything.to_string();
    env.kubectl.run(&["patch", "crd", "policyrevisions.proviso.dev", "--type=json", "-p", &patch]).await?;
    let mut malformed = revision("malformed", 1, &json!({}));
    malformed["spec"]["data"] = 1.into();
    until("the API server to accept the malformed revision", WAIT_TIMEOUT, async || env.create(&malformed).await)
        .await?;
    let status = env.until_reported("cluster.malformed-1", "pod-1", "False", "Invalid").await?;
    ensure!(status["replicas"][0]["message"].as_str().unwrap().starts_with("spec.data: "), "{status:#}");
    // The name of the revision has its policy and generation.
    let answer = ask(&server, "/validate/cluster.malformed/1").await;
    ensure!(!answer.is_allowed() && answer.message().contains("Invalid: spec.data: "), "{}", answer.text);
    env.create(&revision("local", 1, &wasm("file:///etc/passwd"))).await?;
    let status = env.until_reported("cluster.local-1", "pod-1", "False", "Invalid").await?;
    ensure!(status["replicas"][0]["message"].as_str().unwrap().contains("a file:// module"), "{status:#}");
    let mut misnamed = revision("good", 2, &forbid("true", "another"));
    misnamed["metadata"]["name"] = "cluster.good-1b".into();
    env.create(&misnamed).await?;
    let mut foreign = revision("foreign", 1, &forbid("true", "foreign"));
    foreign["metadata"]["labels"]["proviso.dev/policy-server"] = "other".into();
    env.create(&foreign).await?;

    env.create(&revision("later", 1, &forbid("true", "later"))).await?;
    until_answered(&server, "/validate/cluster.later/1", "later").await?;
    until_answered(&server, "/validate/cluster.good/1", "good").await?;
    env.until_reported("cluster.good-1b", "pod-1", "False", "Invalid").await?;
    ensure!(ask(&server, "/validate/cluster.good/2").await.status == StatusCode::SERVICE_UNAVAILABLE);
    ensure!(ask(&server, "/validate/cluster.foreign/1").await.status == StatusCode::NOT_FOUND);
    ensure!(env.revisions.get("cluster.foreign-1").await?.data["status"].is_null());

    // A new replica becomes ready: it does not wait for revisions that the leader has not prepared, because they cannot be live.
    let successor = env.replica_of("policy-server-default-1", "pod-2").await?;
    env.until_reported("cluster.good-1", "pod-2", "True", "Loaded").await?;
    let details = successor.details().await;
    for line in ["[+] cluster.later-1 loaded", "[ ] cluster.typo-1 waits for the leader to prepare it"] {
        ensure!(details.contains(line), "{details}");
    }
    ensure!(!details.contains("foreign"), "{details}");
    Ok(())
}

#[tokio::test]
async fn loaded_revisions_keep_serving_without_the_api_server() -> Result<()> {
    let mut env = TestEnv::start_dedicated("without-the-api-server").await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let server = env.replica("pod-1").await?;
    until_answered(&server, "/validate/cluster.a/1", "one").await?;
    env.until_reported("cluster.a-1", "pod-1", "True", "Loaded").await?;
    let version = env.revisions.get("cluster.a-1").await?.metadata.resource_version;

    env.plane.own().api_server(0).process().kill();
    until("an interrupted watch", WAIT_TIMEOUT, async || {
        server.event("watch interrupted; loaded revisions keep serving").map(drop).context("nothing in the log")
    })
    .await?;
    ensure!(ask(&server, "/validate/cluster.a/1").await.message() == "one");
    ensure!(server.get("/readyz").await.status == StatusCode::OK);

    env.plane.own().api_server(0).process().restart()?;
    env.plane.own().api_server(0).until_ready().await?;
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    until_answered(&server, "/validate/cluster.a/2", "two").await?;
    until_answered(&server, "/validate/cluster.a/1", "one").await?;
    env.until_reported("cluster.a-2", "pod-1", "True", "Loaded").await?;

    // Expired watches start again with a list.
    env.plane.own().expire_watches().await?;
    env.revisions.delete("cluster.a-2", &DeleteParams::default()).await?;
    until_unloaded(&server, "/validate/cluster.a/2").await?;

    let unchanged = env.revisions.get("cluster.a-1").await?.metadata.resource_version == version;
    ensure!(unchanged, "the status was written again, although nothing changed");
    Ok(())
}
