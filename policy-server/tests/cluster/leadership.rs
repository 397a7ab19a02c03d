//! Which replica of a policy server leads, and that nothing that serves depends on it (FAULTS: killed, frozen and two
//! leaders, no lease).

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use kube::api::DeleteParams;
use proviso_e2e::until;
use rustix::process::Signal;
use serde_json::json;

use crate::support::stage::{LEASE, Stage, ask, revision, until_answered};
use crate::support::{PATIENCE, Server, forbid};

const PODS: [(&str, &str); 2] = [("policy-server-default-0", "uid-0"), ("policy-server-default-1", "uid-1")];

/// Two replicas that serve `cluster.a-1`: the one that leads, and the other.
async fn two(stage: &Stage) -> Result<[(&'static str, Server); 2]> {
    stage.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let mut replicas = Vec::new();
    for (pod, uid) in PODS {
        let server = stage.replica_of(pod, uid).await?;
        until_answered(&server, "/validate/cluster.a/1", "one").await?;
        replicas.push((uid, server));
    }
    if stage.leader().await? != PODS[0].0 {
        replicas.reverse();
    }
    replicas.try_into().map_err(|_| anyhow::anyhow!("not two"))
}

/// Waits until another pod than this leads.
async fn until_led_by_another(stage: &Stage, uid: &str) -> Result<()> {
    until("another leader", PATIENCE, async || {
        let spec = stage.leases.get(LEASE).await?.spec.context("no spec")?;
        let holder = spec.holder_identity.context("nobody leads")?;
        ensure!(!holder.ends_with(uid), "{holder} still leads");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn when_the_leader_is_killed_another_goes_on() -> Result<()> {
    let stage = Stage::start("leader-killed").await?;
    let [(killed, leader), (uid, other)] = two(&stage).await?;
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    for server in [&leader, &other] {
        until_answered(server, "/validate/cluster.a/2", "two").await?;
    }
    // Right after a new revision, so that its preparation is under way or not begun.
    stage.create(&revision("a", 3, &forbid("true", "three"))).await?;
    leader.signal(Signal::KILL);
    ensure!(ask(&other, "/validate/cluster.a/2").await.message() == "two");
    until_answered(&other, "/validate/cluster.a/3", "three").await?;
    until_led_by_another(&stage, killed).await?;
    stage.create(&revision("a", 4, &forbid("true", "four"))).await?;
    stage.until_initialized("cluster.a-4").await?;
    stage.until_reported("cluster.a-4", uid, "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_leader_that_ends_gives_the_lease_back() -> Result<()> {
    let stage = Stage::start("leader-ends").await?;
    let [(_, leader), (uid, _other)] = two(&stage).await?;
    leader.stop().await;
    let holder = stage.leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
    ensure!(holder.is_none_or(|holder| holder.ends_with(uid)), "it still holds the lease");
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    stage.until_reported("cluster.a-2", uid, "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_leader_that_was_frozen_finds_itself_replaced() -> Result<()> {
    let stage = Stage::start("leader-frozen").await?;
    let [(frozen, leader), (uid, other)] = two(&stage).await?;
    leader.signal(Signal::STOP);
    // Nothing but time ends its lease.
    until_led_by_another(&stage, frozen).await?;
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    stage.until_initialized("cluster.a-2").await?;
    until_answered(&other, "/validate/cluster.a/2", "two").await?;
    stage.until_reported("cluster.a-2", uid, "True", "Loaded").await?;
    let initialized = stage.revisions.get("cluster.a-2").await?.data["status"]["conditions"].clone();

    leader.signal(Signal::CONT);
    until_answered(&leader, "/validate/cluster.a/2", "two").await?;
    let status = stage.until_reported("cluster.a-2", frozen, "True", "Loaded").await?;
    ensure!(status["conditions"] == initialized, "it spoke for all: {status:#}");
    ensure!(!stage.leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity).unwrap().ends_with(frozen));
    Ok(())
}

#[tokio::test]
async fn without_a_lease_what_is_loaded_serves_and_what_is_new_waits() -> Result<()> {
    let stage = Stage::start("no-lease").await?;
    let [(_, leader), (_, other)] = two(&stage).await?;
    stage.leases.delete(LEASE, &DeleteParams::default()).await?;
    for server in [&leader, &other] {
        server
            .until("the loss to be noticed", async || {
                server.event("the lease cannot be read or written; trying again").is_some()
            })
            .await;
    }
    // A claim that was won goes on until its end; then nobody leads.
    let tries = AtomicU32::new(0);
    until("nobody to lead", PATIENCE, async || {
        let name = format!("b{}", tries.fetch_add(1, Ordering::Relaxed));
        stage.create(&revision(&name, 1, &forbid("true", "new"))).await?;
        let waits = format!("[ ] cluster.{name}-1 waits for the leader to prepare it");
        for server in [&leader, &other] {
            let details = server.details().await;
            ensure!(details.contains(&waits), "{details}");
        }
        Ok(())
    })
    .await?;
    for server in [&leader, &other] {
        ensure!(ask(server, "/validate/cluster.a/1").await.message() == "one");
        ensure!(server.get("/readyz").await.status == StatusCode::OK);
    }
    stage.make_lease().await?;
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    for server in [&leader, &other] {
        until_answered(server, "/validate/cluster.a/2", "two").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_replica_that_lacks_a_live_generation_that_others_serve_is_not_ready() -> Result<()> {
    let stage = Stage::start("lacks-a-live-generation").await?;
    let server = stage.replica("uid-0").await?;
    // Prepared by a leader, and served by another replica, in a version that could fetch it.
    let module = json!({"program": {"wasm": {"module": "https://127.0.0.1:1/gone.wasm"}}});
    stage.create(&revision("gone", 1, &module)).await?;
    let time = "2026-11-21T12:00:00Z";
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "reason": "A", "message": "", "lastTransitionTime": time});
    let said = |ready: &str| {
        json!({"status": {
            "conditions": [condition("Initialized"), condition("Live")],
            "replicas": [{"name": "other", "podUID": "uid-1", "serverVersion": "0", "ready": ready, "reason": "Loaded", "lastTransitionTime": time}],
        }})
    };
    let say = async |status: serde_json::Value| {
        let patch = kube::api::Patch::Merge(status);
        stage.revisions.patch_status("cluster.gone-1", &kube::api::PatchParams::default(), &patch).await
    };
    say(said("True")).await?;
    until("not ready", PATIENCE, async || {
        let answer = server.get("/readyz").await;
        ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
        ensure!(answer.text.contains("cluster.gone-1 is live, and not served here: PullError"), "{}", answer.text);
        Ok(())
    })
    .await?;
    // If nobody serves it, to leave would help nobody: what it has goes on, what it lacks is denied.
    say(said("False")).await?;
    until("ready", PATIENCE, async || {
        ensure!(server.get("/readyz").await.status == StatusCode::OK);
        Ok(())
    })
    .await?;
    let answer = ask(&server, "/validate/cluster.gone/1").await;
    ensure!(!answer.is_allowed() && answer.message().contains("generation 1 of cluster.gone does not work here"));
    Ok(())
}
