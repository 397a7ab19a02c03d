//! The policy server as a replica in a cluster: revisions of a real API server are loaded, reported on and unloaded,
//! each by itself, and what is loaded keeps serving whatever happens to the API server.

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use kube::api::DeleteParams;
use proviso_e2e::until;
use serde_json::json;

use crate::support::stage::{Stage, ask, condition, revision, until_answered, until_unloaded};
use crate::support::{PATIENCE, cel, forbid, with};

#[tokio::test]
async fn generations_are_loaded_beside_each_other_and_unloaded_one_by_one() -> Result<()> {
    let stage = Stage::start("generations-beside-each-other").await?;
    let server = stage.replica("pod-1").await?;
    let (first, second) = ("/validate/cluster.a/1", "/validate/cluster.a/2");
    ensure!(ask(&server, first).await.status == StatusCode::NOT_FOUND, "nobody has made such a policy");

    stage.create(&revision("a", 1, &forbid("true", "one"))).await?;
    until_answered(&server, first, "one").await?;
    let status = stage.until_reported("cluster.a-1", "pod-1", "True", "Loaded").await?;
    ensure!(status["replicas"][0]["serverVersion"] == env!("CARGO_PKG_VERSION"), "{status:#}");
    let initialized = condition(&status, "Initialized")?;
    ensure!(initialized["status"] == "True" && initialized["reason"] == "Prepared", "{initialized}");
    ensure!(initialized["observedGeneration"] == 1, "{initialized}");

    let answer = ask(&server, second).await;
    ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.headers["retry-after"] == "1");
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    until_answered(&server, second, "two").await?;
    until_answered(&server, first, "one").await?;

    // The webhook's path selects the generation; which one is live is a gauge.
    let live = async || server.count("proviso_policy_live_generation", &["policy=\"cluster.a\""]).await;
    stage.set_condition("cluster.a-2", "Live", "True").await?;
    server.until("the gauge of the live generation", async || live().await == 2).await;
    let answer = ask(&server, "/validate/cluster.a").await;
    ensure!(answer.status == StatusCode::NOT_FOUND, "{}", answer.text);
    ensure!(answer.text.contains("/validate/cluster.a/<generation>"), "{}", answer.text);

    stage.enable("cluster.a-1", false).await?;
    until_unloaded(&server, first).await?;
    until_answered(&server, second, "two").await?;
    until("nothing to be claimed about the disabled one", PATIENCE, async || {
        let status = &stage.revisions.get("cluster.a-1").await?.data["status"];
        ensure!(status["replicas"].as_array().is_none_or(Vec::is_empty), "{status:#}");
        Ok(())
    })
    .await?;
    ensure!(server.details().await.contains("[ ] cluster.a-1 disabled\n[+] cluster.a-2 loaded\n"));
    stage.enable("cluster.a-1", true).await?;
    until_answered(&server, first, "one").await?;
    stage.until_reported("cluster.a-1", "pod-1", "True", "Loaded").await?;

    for name in ["cluster.a-1", "cluster.a-2"] {
        stage.revisions.delete(name, &DeleteParams::default()).await?;
    }
    until("a policy that is gone", PATIENCE, async || {
        ensure!(ask(&server, second).await.status == StatusCode::NOT_FOUND);
        Ok(())
    })
    .await?;
    ensure!(!server.get("/metrics").await.text.contains("proviso_policy_live_generation{"), "of a policy that is gone");
    Ok(())
}

#[tokio::test]
async fn a_revision_that_does_not_work_says_why_and_the_others_go_on() -> Result<()> {
    let stage = Stage::alone("revisions-that-do-not-work").await?;
    let server = stage.replica("pod-1").await?;
    stage.create(&revision("good", 1, &forbid("true", "good"))).await?;
    until_answered(&server, "/validate/cluster.good/1", "good").await?;

    let wasm = |module: &str| json!({"program": {"wasm": {"module": module}}});
    for (name, spec, reason, message) in [
        ("typo", cel("object.metadata.(", "no"), "CompileError", "spec.program.cel"),
        ("remote", wasm("https://127.0.0.1:1/a.wasm"), "PullError", "127.0.0.1:1"),
        ("capable", with(cel("true", ""), &json!({"hostCapabilities": ["a"]})), "Invalid", "spec.hostCapabilities[0]"),
    ] {
        stage.create(&revision(name, 1, &spec)).await?;
        let status = stage.until_reported(&format!("cluster.{name}-1"), "pod-1", "False", reason).await?;
        for said in [&status["replicas"][0]["message"], &condition(&status, "Initialized")?["message"]] {
            ensure!(said.as_str().unwrap().contains(message), "{name}: {said}");
        }
        let initialized = condition(&status, "Initialized")?;
        ensure!(initialized["status"] == "False" && initialized["reason"] == reason, "{initialized}");
        // An error would let the request pass where the webhook's failurePolicy is Ignore.
        let answer = ask(&server, &format!("/validate/cluster.{name}/1")).await;
        ensure!(!answer.is_allowed() && answer.message().contains(message), "{}", answer.text);
    }

    // One that no version of ours could have made, because the kind has changed.
    let anything = json!([{
        "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
        "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }]);
    let patch = anything.to_string();
    stage.kubectl.run(&["patch", "crd", "policyrevisions.proviso.dev", "--type=json", "-p", &patch]).await?;
    let mut malformed = revision("malformed", 1, &json!({}));
    malformed["spec"]["data"] = 1.into();
    until("the malformed revision to be taken", PATIENCE, async || stage.create(&malformed).await).await?;
    let status = stage.until_reported("cluster.malformed-1", "pod-1", "False", "Invalid").await?;
    ensure!(status["replicas"][0]["message"].as_str().unwrap().starts_with("spec.data: "), "{status:#}");
    stage.create(&revision("local", 1, &wasm("file:///etc/passwd"))).await?;
    let status = stage.until_reported("cluster.local-1", "pod-1", "False", "Invalid").await?;
    ensure!(status["replicas"][0]["message"].as_str().unwrap().contains("a file:// module"), "{status:#}");
    let mut misnamed = revision("good", 2, &forbid("true", "another"));
    misnamed["metadata"]["name"] = "cluster.good-1b".into();
    stage.create(&misnamed).await?;
    let mut foreign = revision("foreign", 1, &forbid("true", "foreign"));
    foreign["metadata"]["labels"]["proviso.dev/policy-server"] = "other".into();
    stage.create(&foreign).await?;

    stage.create(&revision("later", 1, &forbid("true", "later"))).await?;
    until_answered(&server, "/validate/cluster.later/1", "later").await?;
    until_answered(&server, "/validate/cluster.good/1", "good").await?;
    stage.until_reported("cluster.good-1b", "pod-1", "False", "Invalid").await?;
    ensure!(ask(&server, "/validate/cluster.good/2").await.status == StatusCode::SERVICE_UNAVAILABLE);
    ensure!(ask(&server, "/validate/cluster.foreign/1").await.status == StatusCode::NOT_FOUND);
    ensure!(stage.revisions.get("cluster.foreign-1").await?.data["status"].is_null());

    // A replica that starts among them is ready all the same: what was never prepared for all is not live.
    let successor = stage.replica_of("policy-server-default-1", "pod-2").await?;
    stage.until_reported("cluster.good-1", "pod-2", "True", "Loaded").await?;
    let details = successor.details().await;
    for line in ["[+] cluster.later-1 loaded", "[ ] cluster.typo-1 waits for the leader to prepare it"] {
        ensure!(details.contains(line), "{details}");
    }
    ensure!(!details.contains("foreign"), "{details}");
    Ok(())
}

#[tokio::test]
async fn without_the_api_server_what_is_loaded_keeps_serving() -> Result<()> {
    let mut stage = Stage::alone("without-the-api-server").await?;
    stage.kubectl.run(&["label", "namespace", "default", "team=a"]).await?;
    // Asked only about namespaces of this label: the server has to know them.
    let selector = json!({"admission": {"namespaceSelector": {"matchLabels": {"team": "a"}}}});
    stage.create(&revision("a", 1, &with(forbid("true", "one"), &selector))).await?;
    let server = stage.replica("pod-1").await?;
    ensure!(ask(&server, "/validate/cluster.a/1").await.message() == "one", "it was ready");
    stage.until_reported("cluster.a-1", "pod-1", "True", "Loaded").await?;
    let version = stage.revisions.get("cluster.a-1").await?.metadata.resource_version;

    stage.plane.own().api_server(0).process().kill();
    until("a watch that is interrupted", PATIENCE, async || {
        server.event("watch interrupted; what is loaded keeps serving").map(drop).context("nothing in the log")
    })
    .await?;
    ensure!(ask(&server, "/validate/cluster.a/1").await.message() == "one");
    ensure!(server.get("/readyz").await.status == StatusCode::OK);

    stage.plane.own().api_server(0).process().restart()?;
    stage.plane.own().api_server(0).until_ready().await?;
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    until_answered(&server, "/validate/cluster.a/2", "two").await?;
    until_answered(&server, "/validate/cluster.a/1", "one").await?;
    stage.until_reported("cluster.a-2", "pod-1", "True", "Loaded").await?;

    // Watches that cannot be resumed are begun anew.
    stage.plane.own().expire_watches().await?;
    stage.revisions.delete("cluster.a-2", &DeleteParams::default()).await?;
    until_unloaded(&server, "/validate/cluster.a/2").await?;

    let unchanged = stage.revisions.get("cluster.a-1").await?.metadata.resource_version == version;
    ensure!(unchanged, "its status was written again, though nothing changed");

    // Labels of namespaces are followed too.
    until("the namespace to be labelled", PATIENCE, async || {
        stage.kubectl.run(&["label", "--overwrite", "namespace", "default", "team=b"]).await
    })
    .await?;
    until("a policy that is not asked any more", PATIENCE, async || {
        ensure!(ask(&server, "/validate/cluster.a/1").await.is_allowed());
        Ok(())
    })
    .await
}
