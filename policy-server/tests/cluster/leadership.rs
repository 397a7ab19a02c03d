//! Tests of the leader of the replicas: it is killed, stopped or frozen, its Lease is deleted, or the permissions for the
//! Lease are revoked. The replicas keep serving without a leader.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::DeleteParams;
use kube::config::Kubeconfig;
use proviso_e2e::{manifests, until};
use rustix::process::Signal;
use serde_json::json;

use crate::support::cluster::{LEASE, TestEnv, ask, revision, until_answered};
use crate::support::{Server, WAIT_TIMEOUT, forbid};

const PODS: [(&str, &str); 2] = [("policy-server-default-0", "uid-0"), ("policy-server-default-1", "uid-1")];

/// A user of the API server.
const USER: &str = "restricted-replica";

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

/// Waits until no replica leads, and checks that new revisions wait, and that `cluster.a-1` is served.
async fn until_no_leader(env: &TestEnv, servers: &[&Server]) -> Result<()> {
    for server in servers {
        server
            .until("the Lease in the log", async || {
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
        for server in servers {
            server.until_details(&format!("cluster.{name}-1")).await;
            let details = server.details().await;
            ensure!(details.contains(&waits), "{details}");
        }
        Ok(())
    })
    .await?;
    for server in servers {
        ensure!(ask(server, "/validate/cluster.a/1").await.message() == "one");
        ensure!(server.get("/readyz").await.status == StatusCode::OK);
    }
    Ok(())
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
    until_no_leader(&env, &[&leader, &other]).await?;
    env.create_lease().await?;
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    for server in [&leader, &other] {
        until_answered(server, "/validate/cluster.a/2", "two").await?;
    }
    Ok(())
}

/// Gives the user of the replicas the permissions for their Lease.
async fn permit_lease(env: &TestEnv) -> Result<()> {
    let namespace = &env.namespace;
    let metadata = json!({"name": LEASE, "namespace": namespace});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "patch"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": LEASE},
    });
    let client = env.plane.client().await?;
    for object in [role, binding] {
        manifests::apply(&client, &object.to_string()).await?;
    }
    Ok(())
}

/// Returns the kubeconfig of a user who has every permission but those for Leases.
async fn restricted_user(env: &TestEnv) -> Result<PathBuf> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": USER},
        "rules": [{
            "apiGroups": ["", "proviso.dev", "apiextensions.k8s.io", "admissionregistration.k8s.io", "events.k8s.io"],
            "resources": ["*"], "verbs": ["*"],
        }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
    });
    let client = env.plane.client().await?;
    for object in [role, binding] {
        manifests::apply(&client, &object.to_string()).await?;
    }
    // The administrator impersonates the user.
    let mut kubeconfig = serde_json::to_value(Kubeconfig::read_from(env.plane.kubeconfig())?)?;
    kubeconfig["users"][0]["user"]["as"] = USER.into();
    let file = env.plane.folder().path().join(format!("{}-{USER}.kubeconfig", env.namespace));
    std::fs::write(&file, kubeconfig.to_string())?;
    Ok(file)
}

#[tokio::test]
async fn replicas_continue_when_revoked_permissions_for_the_lease_are_restored() -> Result<()> {
    let env = TestEnv::start("lease-permissions-revoked").await?;
    let kubeconfig = restricted_user(&env).await?;
    permit_lease(&env).await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let mut replicas = Vec::new();
    for (pod, uid) in PODS {
        let mut command = env.command(pod, uid);
        command.env("KUBECONFIG", &kubeconfig);
        let server = TestEnv::run(command).await?;
        until_answered(&server, "/validate/cluster.a/1", "one").await?;
        replicas.push(server);
    }
    let bindings = Api::<RoleBinding>::namespaced(env.plane.client().await?, &env.namespace);
    bindings.delete(LEASE, &DeleteParams::default()).await?;
    until_no_leader(&env, &replicas.iter().collect::<Vec<_>>()).await?;
    let refused = replicas[0].event("the lease cannot be read or written; trying again").context("no warning")?;
    ensure!(refused["error"].as_str().is_some_and(|error| error.contains("forbidden")), "{refused}");

    permit_lease(&env).await?;
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    for server in &replicas {
        until_answered(server, "/validate/cluster.a/2", "two").await?;
    }
    Ok(())
}
