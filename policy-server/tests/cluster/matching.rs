//! The match of a replica in a cluster. The API server has matched each request that it sends, with newer labels of namespaces than a
//! replica may know, so a replica checks only the limits of namespaced policies again.

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::previews::{candidate, preview, until_loaded};
use crate::support::cluster::{TestEnv, ask, namespaced, revision, until_answered};
use crate::support::{Server, WAIT_TIMEOUT, forbid, pod, with};

/// Returns the reason in the audit annotation of a request that the policy was not asked about.
async fn not_asked(server: &Server, path: &str, review: &Value) -> Result<String> {
    let answer = server.post(path, review.to_string()).await;
    ensure!(answer.is_allowed(), "{}", answer.text);
    let why = answer.response()["auditAnnotations"]["not-asked"].as_str().map(ToOwned::to_owned);
    why.with_context(|| answer.text.clone())
}

#[tokio::test]
async fn a_request_from_the_api_server_is_not_matched_again() -> Result<()> {
    let env = TestEnv::start("matched-by-the-api-server").await?;
    let server = env.replica("pod-1").await?;
    // As far as the replica knows, none of these sections covers the request: the namespace `default` has no such label.
    let services = json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"]}]);
    for (name, admission) in [
        ("namespaces", json!({"namespaceSelector": {"matchLabels": {"labelled": "later"}}})),
        ("objects", json!({"objectSelector": {"matchLabels": {"app": "other"}}})),
        ("rules", json!({"rules": services})),
    ] {
        let spec = with(forbid("true", "asked"), &json!({"admission": admission}));
        env.create(&revision(name, 1, &spec)).await?;
        env.create(&namespaced(revision(name, 1, &spec))).await?;
        for id in ["cluster", "ns.default"] {
            until_answered(&server, &format!("/validate/{id}.{name}/1"), "asked").await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_namespaced_policy_is_not_asked_about_other_namespaces_and_secrets() -> Result<()> {
    let env = TestEnv::start("limits-of-a-namespaced-policy").await?;
    let server = env.replica("pod-1").await?;
    env.create(&namespaced(revision("mine", 1, &forbid("true", "asked")))).await?;
    let path = "/validate/ns.default.mine/1";
    until_answered(&server, path, "asked").await?;
    let changed = |pointer: &str, value: &str| {
        let mut review = pod("u", "x");
        *review.pointer_mut(pointer).unwrap() = value.into();
        review
    };
    for review in [
        changed("/request/namespace", "kube-system"),
        changed("/request/resource/resource", "secrets"),
        changed("/request/resource/group", "proviso.dev"),
    ] {
        let why = not_asked(&server, path, &review).await?;
        ensure!(why.starts_with("a namespaced policy covers only its own namespace"), "{why}");
    }
    // A disabled policy is not asked about any request.
    env.create(&revision("off", 1, &with(forbid("true", "asked"), &json!({"enabled": false})))).await?;
    until_loaded(&server, "cluster.off-1").await;
    ensure!(not_asked(&server, "/validate/cluster.off/1", &pod("u", "x")).await? == "spec.enabled is false");
    ensure!(ask(&server, path).await.message() == "asked");
    Ok(())
}

#[tokio::test]
async fn previews_follow_the_labels_of_namespaces() -> Result<()> {
    let env = TestEnv::start("previews-follow-labels").await?;
    let server = env.replica("pod-1").await?;
    // The experiment covers all namespaces and so has its own webhook. Only the replica matches its requests with the live policy.
    let selector = json!({"admission": {"namespaceSelector": {"matchLabels": {"previews-follow-labels": "true"}}}});
    env.create(&revision("a", 1, &with(forbid("true", "one"), &selector))).await?;
    env.create(&candidate("a", "wider", &forbid("true", "two"))).await?;
    for name in ["cluster.a-1", "experiment.cluster.wider-1"] {
        until_loaded(&server, name).await;
    }
    env.set_condition("cluster.a-1", "Live", "True").await?;
    let until_live_verdict = async |is_allowed: bool| {
        until(&format!("the live verdict {is_allowed}"), WAIT_TIMEOUT, async || {
            preview(&server, "wider", &pod("u", "x")).await?;
            let line = server.previews().pop().context("no preview line")?;
            ensure!(line["liveGeneration"] == 1 && line["live"]["allowed"] == is_allowed, "{line}");
            Ok(())
        })
        .await
    };
    until_live_verdict(true).await?;
    env.kubectl.run(&["label", "namespace", "default", "previews-follow-labels=true"]).await?;
    until_live_verdict(false).await
}
