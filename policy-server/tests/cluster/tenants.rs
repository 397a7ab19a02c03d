//! Attacks of the author of a namespaced policy on a replica: the replica itself refuses what its `PolicyServer` does not permit, also if
//! the operator has created the revision.

use std::io::ErrorKind;
use std::net::TcpListener;

use anyhow::{Result, ensure};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::support::cluster::{POD, TestEnv, ask, condition, namespaced, revision, until_answered};
use crate::support::{Server, WAIT_TIMEOUT, forbid, pod, with};

/// Starts the replica with these limits of namespaced policies.
async fn replica(env: &TestEnv, pod_uid: &str, file: &std::path::Path) -> Result<Server> {
    let mut command = env.command(POD, pod_uid);
    command.arg("--tenants").arg(file);
    TestEnv::run(command).await
}

#[tokio::test]
async fn a_replica_prepares_only_what_its_server_permits_to_namespaced_policies() -> Result<()> {
    let env = TestEnv::start("tenants-of-a-replica").await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tenants.json");
    std::fs::write(&file, "{}")?;
    let server = replica(&env, "pod-1", &file).await?;
    let attacks = [
        ("calls", json!({"hostCapabilities": ["net/*"]}), "spec.hostCapabilities"),
        (
            "reads",
            json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]}),
            "spec.contextAwareResources",
        ),
        ("mutates", json!({"admission": {"mutating": true}}), "spec.admission.mutating"),
    ];
    for (name, fields, field) in &attacks {
        let spec = with(forbid("true", "asked"), fields);
        env.create(&namespaced(revision(name, 1, &spec))).await?;
        let status = env.until_reported(&format!("ns.default.{name}-1"), "pod-1", "False", "NotPermitted").await?;
        let initialized = condition(&status, "Initialized")?;
        ensure!(initialized["message"].as_str().is_some_and(|it| it.starts_with(field)), "{initialized}");
    }
    // A ClusterPolicy has no limits.
    env.create(&revision("mutates", 1, &with(forbid("true", "asked"), &json!({"admission": {"mutating": true}}))))
        .await?;
    until_answered(&server, "/validate/cluster.mutates/1", "asked").await?;

    // The administrator permits the uses, and the replica reads the file again.
    std::fs::write(&file, r#"{"namespacedMutation": true, "namespacedCapabilities": ["*"]}"#)?;
    for (name, ..) in &attacks {
        env.until_reported(&format!("ns.default.{name}-1"), "pod-1", "True", "Loaded").await?;
    }
    drop(server);

    // A replica that starts after the end of the permission still loads what has worked.
    std::fs::write(&file, "{}")?;
    env.expire_lease().await?;
    let server = replica(&env, "pod-2", &file).await?;
    for (name, ..) in &attacks {
        until_answered(&server, &format!("/validate/ns.default.{name}/1"), "asked").await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_author_of_a_namespaced_policy_does_not_learn_what_listens_where() -> Result<()> {
    let env = TestEnv::start("tenants-and-addresses").await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tenants.json");
    std::fs::write(&file, "{}")?;
    let server = replica(&env, "pod-1", &file).await?;
    let (open, closed) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    open.set_nonblocking(true)?;
    let (open_port, closed_port) = (open.local_addr()?.port(), closed.local_addr()?.port());
    drop(closed);
    let mut messages = Vec::new();
    for (name, url) in [
        ("open", format!("https://127.0.0.1:{open_port}/a.wasm")),
        ("closed", format!("https://127.0.0.1:{closed_port}/a.wasm")),
        ("metadata", "https://169.254.169.254/a.wasm".to_owned()),
    ] {
        let spec = json!({"program": {"wasm": {"module": url}}});
        env.create(&namespaced(revision(name, 1, &spec))).await?;
        let status = env.until_reported(&format!("ns.default.{name}-1"), "pod-1", "False", "PullError").await?;
        messages.push(condition(&status, "Initialized")?["message"].clone());
        // A denial does not tell it either.
        let denial = ask(&server, &format!("/validate/ns.default.{name}/1")).await;
        ensure!(!denial.text.contains("127.0.0.1") && !denial.text.contains("address"), "{}", denial.text);
    }
    ensure!(messages.iter().all(|message| *message == messages[0]), "{messages:?}");
    let message = messages[0].as_str().unwrap_or_default();
    ensure!(
        message.starts_with("spec.program.wasm.module: cannot be fetched: its server does not return it"),
        "{message}"
    );
    let connected = open.accept().map(drop).map_err(|error| error.kind());
    ensure!(connected == Err(ErrorKind::WouldBlock), "the replica has connected to an internal address");
    // The log of the replica has the cause, for administrators.
    let log = server.stderr.all().join("\n");
    ensure!(log.contains(&format!("127.0.0.1:{open_port} cannot be reached")), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_hand_edited_webhook_does_not_ask_a_namespaced_policy_about_system_requests() -> Result<()> {
    let env = TestEnv::start("tenants-and-system-requests").await?;
    let spec = forbid("true", "asked");
    env.create(&namespaced(revision("mine", 1, &spec))).await?;
    let with_user = |user: Value| {
        let mut review = pod("u", "x");
        review["request"]["userInfo"] = user;
        review.to_string()
    };
    let masters = json!({"username": "admin", "groups": ["system:masters"]});
    let node = json!({"username": "system:node:a", "groups": ["system:nodes"]});
    let account = |name: &str| json!({"username": format!("system:serviceaccount:kube-system:{name}"), "groups": []});
    let path = "/validate/ns.default.mine/1";
    let server = env.replica("pod-1").await?;
    until_answered(&server, path, "asked").await?;
    for user in [masters.clone(), node, account("generic-garbage-collector")] {
        let answer = server.post(path, with_user(user)).await;
        ensure!(answer.is_allowed(), "{}", answer.text);
    }
    let answer = server.post(path, with_user(account("replicaset-controller"))).await;
    ensure!(!answer.is_allowed(), "a Pod of a Deployment has escaped the policy: {}", answer.text);
    drop(server);

    env.expire_lease().await?;
    let mut command = env.command(POD, "pod-2");
    command.args(["--namespaced-system-requests", "true"]);
    let server = TestEnv::run(command).await?;
    until("the policy", WAIT_TIMEOUT, async || {
        let answer = server.post(path, with_user(masters.clone())).await;
        ensure!(!answer.is_allowed(), "{}", answer.text);
        Ok(())
    })
    .await
}
