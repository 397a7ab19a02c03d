//! Tests of the leader of the replicas: it is killed, stopped or frozen, or its Lease is deleted. The replicas keep serving
//! without a leader.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use kube::api::DeleteParams;
use proviso_e2e::until;
use rustix::process::Signal;
use serde_json::json;

use crate::support::cluster::{LEASE, TestEnv, ask, revision, until_answered};
use crate::support::{Server, WAIT_TIMEOUT, forbid};

const PODS: [(&str, &str); 2] = [("policy-server-default-0", "uid-0"), ("policy-server-default-1", "uid-1")];

/// Starts two replicas that serve `cluster.a-1`. Returns the leader first.
async fn start_two(env: &TestEnv) -> Result<[(&'static str, Server); 2]> {
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let mut replicas = Vec::new();
    for (pod, uid) in PODS {
        let server = env.replica_of(pod, uid).await?;
        until_answered(&server, "/validate/cluster.a/1", "one").await?;
        replicas.push((uid, server));
    }
    if env.leader().await? != PODS[0].0 {
        replicas.reverse();
    }
    replicas.try_into().map_err(|_| anyhow::anyhow!("not two"))
}

/// Waits until a pod other than this one leads.
async fn until_led_by_another(env: &TestEnv, uid: &str) -> Result<()> {
    until("another leader", WAIT_TIMEOUT, async || {
        let spec = env.leases.get(LEASE).await?.spec.context("no spec")?;
        let holder = spec.holder_identity.context("the Lease has no holder")?;
        ensure!(!holder.ends_with(uid), "{holder} still leads");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn another_replica_leads_after_the_leader_is_killed() -> Result<()> {
    let env = TestEnv::start("leader-killed").await?;
    let [(killed, leader), (uid, other)] = start_two(&env).await?;
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    for server in [&leader, &other] {
        until_answered(server, "/validate/cluster.a/2", "two").await?;
    }
    // Kill the leader right after a new revision is created, before or during its preparation.
    env.create(&revision("a", 3, &forbid("true", "three"))).await?;
    leader.signal(Signal::KILL);
    ensure!(ask(&other, "/validate/cluster.a/2").await.message() == "two");
    until_answered(&other, "/validate/cluster.a/3", "three").await?;
    until_led_by_another(&env, killed).await?;
    env.create(&revision("a", 4, &forbid("true", "four"))).await?;
    env.until_initialized("cluster.a-4").await?;
    env.until_reported("cluster.a-4", uid, "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_stopped_leader_releases_the_lease() -> Result<()> {
    let env = TestEnv::start("leader-ends").await?;
    let [(_, leader), (uid, _other)] = start_two(&env).await?;
    leader.stop().await;
    let holder = env.leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
    ensure!(holder.is_none_or(|holder| holder.ends_with(uid)), "the stopped leader still holds the Lease");
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    env.until_reported("cluster.a-2", uid, "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_frozen_leader_is_replaced_and_stops_leading_when_it_wakes_up() -> Result<()> {
    let env = TestEnv::start("leader-frozen").await?;
    let [(frozen, leader), (uid, other)] = start_two(&env).await?;
    leader.signal(Signal::STOP);
    // The Lease of the frozen leader expires.
    until_led_by_another(&env, frozen).await?;
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    env.until_initialized("cluster.a-2").await?;
    until_answered(&other, "/validate/cluster.a/2", "two").await?;
    env.until_reported("cluster.a-2", uid, "True", "Loaded").await?;
    let initialized = env.revisions.get("cluster.a-2").await?.data["status"]["conditions"].clone();

    leader.signal(Signal::CONT);
    until_answered(&leader, "/validate/cluster.a/2", "two").await?;
    let status = env.until_reported("cluster.a-2", frozen, "True", "Loaded").await?;
    ensure!(status["conditions"] == initialized, "the former leader changed the conditions: {status:#}");
    ensure!(!env.leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity).unwrap().ends_with(frozen));
    Ok(())
}

#[tokio::test]
async fn loaded_revisions_serve_and_new_ones_wait_without_a_lease() -> Result<()> {
    let env = TestEnv::start("no-lease").await?;
    let [(_, leader), (_, other)] = start_two(&env).await?;
    env.leases.delete(LEASE, &DeleteParams::default()).await?;
    for server in [&leader, &other] {
        server
            .until("the missing Lease in the log", async || {
                server.event("the lease cannot be read or written; trying again").is_some()
            })
            .await;
    }
    // The last claim of the Lease is valid until it expires. Then no replica leads.
    let tries = AtomicU32::new(0);
    until("the end of the leadership", WAIT_TIMEOUT, async || {
        let name = format!("b{}", tries.fetch_add(1, Ordering::Relaxed));
        env.create(&revision(&name, 1, &forbid("true", "new"))).await?;
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
    env.create_lease().await?;
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    for server in [&leader, &other] {
        until_answered(server, "/validate/cluster.a/2", "two").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_replica_without_a_live_generation_of_others_is_not_ready() -> Result<()> {
    let env = TestEnv::start("lacks-a-live-generation").await?;
    let server = env.replica("uid-0").await?;
    // The status reports that a leader has prepared the revision and that another replica serves it. This replica cannot fetch
    // the module.
    let module = json!({"program": {"wasm": {"module": "https://127.0.0.1:1/gone.wasm"}}});
    env.create(&revision("gone", 1, &module)).await?;
    let time = "2026-11-21T12:00:00Z";
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "reason": "A", "message": "", "lastTransitionTime": time});
    let status = |ready: &str| {
        json!({"status": {
            "conditions": [condition("Initialized"), condition("Live")],
            "replicas": [{"name": "other", "podUID": "uid-1", "serverVersion": "0", "ready": ready, "reason": "Loaded", "lastTransitionTime": time}],
        }})
    };
    let set_status = async |status: serde_json::Value| {
        let patch = kube::api::Patch::Merge(status);
        env.revisions.patch_status("cluster.gone-1", &kube::api::PatchParams::default(), &patch).await
    };
    set_status(status("True")).await?;
    until("not ready", WAIT_TIMEOUT, async || {
        let answer = server.get("/readyz").await;
        ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
        ensure!(answer.text.contains("cluster.gone-1 is live, and not served here: PullError"), "{}", answer.text);
        Ok(())
    })
    .await?;
    // If no replica serves the revision, the replica is ready: it serves the other policies, and denies the requests of this one.
    set_status(status("False")).await?;
    until("ready", WAIT_TIMEOUT, async || {
        ensure!(server.get("/readyz").await.status == StatusCode::OK);
        Ok(())
    })
    .await?;
    let answer = ask(&server, "/validate/cluster.gone/1").await;
    ensure!(!answer.is_allowed() && answer.message().contains("generation 1 of cluster.gone does not work here"));
    Ok(())
}
