//! The readiness of replicas: a replica that lacks a live revision leaves the endpoints while another Ready pod serves the revision,
//! and at least one replica stays.

use anyhow::{Result, ensure};
use hyper::StatusCode;
use kube::api::DeleteParams;
use proviso_e2e::Registry;
use rustix::process::Signal;
use serde_json::json;

use crate::support::cluster::{POD, TestEnv, ask, condition_of, item, revision, until_not_ready};
use crate::support::modules::{RegistryEnv, denying, until_answered};
use crate::support::{Folder, Server};

#[tokio::test]
async fn only_a_ready_pod_that_serves_a_live_revision_makes_another_replica_unready() -> Result<()> {
    let env = TestEnv::start("lacks-a-live-revision").await?;
    let server = env.replica(&env.ready_pod(POD).await?).await?;
    let other = env.ready_pod("other").await?;
    // No replica can fetch the module. The status reports that a leader has prepared the revision, and that a pod serves it.
    let module = json!({"program": {"wasm": {"module": "https://127.0.0.1:1/gone.wasm"}}});
    env.create(&revision("gone", 1, &module)).await?;
    let report = async |uid: &str, ready: &str| {
        let conditions = ["Initialized", "Live"].map(|type_| condition_of(type_, "True"));
        let status = json!({"conditions": conditions, "replicas": [item("other", uid, ready)]});
        env.patch_status("cluster.gone-1", &status).await
    };
    let reason = "cluster.gone-1 is live, and not served here: PullError";
    report(&other, "True").await?;
    until_not_ready(&server, reason).await?;
    until_not_ready(&server, "; the pod other serves it").await?;

    // The item of a pod that was replaced or lost.
    report("uid-of-an-earlier-pod", "True").await?;
    server.until_ready().await?;
    // The replica of the other pod cannot serve the revision either.
    report(&other, "True").await?;
    until_not_ready(&server, reason).await?;
    report(&other, "False").await?;
    server.until_ready().await?;
    // The other pod is not Ready any more, or does not exist any more.
    report(&other, "True").await?;
    until_not_ready(&server, reason).await?;
    env.set_pod_ready("other", false).await?;
    server.until_ready().await?;
    env.set_pod_ready("other", true).await?;
    until_not_ready(&server, reason).await?;
    env.pods.delete("other", &DeleteParams::default().grace_period(0)).await?;
    server.until_ready().await?;
    // The replica serves the other policies, and denies the requests of this one.
    let answer = ask(&server, "/validate/cluster.gone/1").await;
    ensure!(!answer.is_allowed() && answer.message().contains("generation 1 of cluster.gone does not work here"));

    // No replica serves a disabled revision.
    env.enable("cluster.gone-1", false).await?;
    server.until_details("[ ] cluster.gone-1 disabled").await;
    let other = env.ready_pod("another").await?;
    let item = item("another", &other, "True");
    env.patch_status("cluster.gone-1", &json!({"replicas": [item]})).await?;
    env.create(&revision("marker", 1, &json!({}))).await?;
    server.until_details("[+] cluster.marker-1 loaded").await;
    ensure!(server.get("/readyz").await.status == StatusCode::OK, "{}", server.details().await);
    Ok(())
}

#[tokio::test]
async fn an_endpoint_is_left_although_each_replica_lacks_a_live_revision() -> Result<()> {
    let mut env = RegistryEnv::start("mutual-misses").await?;
    // The cache of each replica has one of the two modules, and the registry is down.
    for (name, cache) in [("a", "cache-0"), ("b", "cache-1")] {
        env.registry.push(name, "v1", Registry::MODULE, &denying(name)).await?;
        env.create(name, &json!({"module": env.module(&format!("{name}:v1"))})).await?;
        let (object, pod) = (format!("cluster.{name}-1"), format!("first-{name}"));
        let first = env.replica(&pod, &env.path(cache)).await?;
        env.cluster.until_reported(&object, &pod, "True", "Loaded").await?;
        env.cluster.enable(&object, false).await?;
        first.stop().await;
    }
    env.registry.process().kill();
    for object in ["cluster.a-1", "cluster.b-1"] {
        env.cluster.enable(object, true).await?;
        env.cluster.set_condition(object, "Live", "True").await?;
    }
    let start = async |pod: &str, cache: &str| -> Result<(String, Server)> {
        let uid = env.cluster.ready_pod(pod).await?;
        let server = Server::run(env.command_of(pod, &uid, &env.path(cache)), Folder::new()).await;
        Ok((uid, server))
    };
    let (uid_0, server_0) = start("pod-0", "cache-0").await?;
    let (uid_1, server_1) = start("pod-1", "cache-1").await?;
    for (object, uid, ready, reason) in [
        ("cluster.a-1", &uid_0, "True", "Loaded"),
        ("cluster.b-1", &uid_0, "False", "PullError"),
        ("cluster.a-1", &uid_1, "False", "PullError"),
        ("cluster.b-1", &uid_1, "True", "Loaded"),
    ] {
        env.cluster.until_reported(object, uid, ready, reason).await?;
    }

    // Both replicas lack one revision, so the pod with the smaller name stays.
    until_not_ready(&server_1, "cluster.a-1 is live, and not served here: PullError").await?;
    server_0.until_ready().await?;
    env.cluster.set_pod_ready("pod-1", false).await?;
    let denied = ask(&server_0, "/validate/cluster.b/1").await;
    let message = denied.message();
    ensure!(!denied.is_allowed() && message.contains("cluster.b does not work here: PullError"), "{message}");
    until_answered(&server_0, "a", "a").await?;

    // The other pod is not Ready any more, so this replica becomes an endpoint again.
    env.cluster.set_pod_ready("pod-0", false).await?;
    server_1.until_ready().await?;
    env.cluster.set_pod_ready("pod-1", true).await?;
    env.cluster.set_pod_ready("pod-0", true).await?;
    until_not_ready(&server_1, "; the pod pod-0 serves it").await?;
    ensure!(server_0.get("/readyz").await.status == StatusCode::OK, "{}", server_0.details().await);

    env.registry.process().restart()?;
    for server in [&server_0, &server_1] {
        until_answered(server, "a", "a").await?;
        until_answered(server, "b", "b").await?;
        server.until_ready().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_replica_that_is_loading_a_live_revision_is_not_ready_while_another_pod_serves_it() -> Result<()> {
    let mut env = RegistryEnv::start("loading-a-live-revision").await?;
    let start = async |pod: &str, cache: &str| -> Result<(String, Server)> {
        let uid = env.cluster.ready_pod(pod).await?;
        let server = TestEnv::run(env.command_of(pod, &uid, &env.path(cache))).await?;
        Ok((uid, server))
    };
    let (uid, first) = start("pod-0", "cache-0").await?;
    ensure!(env.cluster.leader().await? == "pod-0");
    let (_, second) = start("pod-1", "cache-1").await?;
    // The second replica learns of the revision when the registry does not answer any more.
    second.signal(Signal::STOP);
    env.registry.push("slow", "v1", Registry::MODULE, &denying("slow")).await?;
    env.create("slow", &json!({"module": env.module("slow:v1")})).await?;
    env.cluster.until_reported("cluster.slow-1", &uid, "True", "Loaded").await?;
    env.registry.process().freeze()?;
    env.cluster.set_condition("cluster.slow-1", "Live", "True").await?;
    second.signal(Signal::CONT);
    let reason = "cluster.slow-1 is live, and not served here: it is still being loaded; the pod pod-0 serves it";
    until_not_ready(&second, reason).await?;
    until_answered(&first, "slow", "slow").await?;
    ensure!(first.get("/readyz").await.status == StatusCode::OK, "{}", first.details().await);

    // If no other pod is Ready, the replica stays an endpoint for the other policies.
    env.cluster.set_pod_ready("pod-0", false).await?;
    second.until_ready().await?;
    env.cluster.set_pod_ready("pod-0", true).await?;
    until_not_ready(&second, reason).await?;
    env.registry.process().thaw()?;
    until_answered(&second, "slow", "slow").await?;
    second.until_ready().await
}
