//! The flows of policy servers and of the operator.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use proviso_e2e::until;
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::load::{Load, deny_with_long_timeout};
use crate::restart::{OperatorEnd, with_operator_end};
use crate::test_cluster::{REPLICAS, TestCluster, WAIT_TIMEOUT, deny};

/// Creates a policy server with one replica, and waits until it is Ready.
async fn create_server(cluster: &TestCluster, name: &str) -> Result<()> {
    let server = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyServer", "metadata": {"name": name},
        "spec": {"replicas": 1, "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
    });
    cluster.apply(&server).await?;
    cluster.until_served(name, 1).await
}

pub async fn move_to_another_policy_server(cluster: &TestCluster) -> Result<()> {
    create_server(cluster, "second").await?;
    let first = cluster.write("moves", &deny_with_long_timeout("moves", "1")).await?;
    cluster.until_live("moves", first).await?;
    cluster.until_denied("moves", "1").await?;
    let begin = Instant::now();
    let load = Load::start(cluster.requester("moves"));
    let mut spec = deny_with_long_timeout("moves", "2");
    spec["policyServer"] = "second".into();
    let moved = cluster.write("moves", &spec).await?;
    cluster.until_live("moves", moved).await?;
    let switched = Instant::now();
    cluster.until_denied("moves", "2").await?;
    load.finish(&[(first, begin), (moved, switched)]).await?;
    let webhook = cluster.webhook("moves").await?.context("no webhook")?;
    ensure!(webhook["clientConfig"]["service"]["name"] == "policy-server-second", "{webhook:#}");
    Ok(())
}

/// Uses the policy server of the previous flow, or creates one.
pub async fn policy_server_deleted_with_policies_on_it(cluster: &TestCluster) -> Result<()> {
    if cluster.servers().get_opt("second").await?.is_none() {
        create_server(cluster, "second").await?;
    }
    let mut spec = deny_with_long_timeout("moves", "3");
    spec["policyServer"] = "second".into();
    let generation = cluster.write("moves", &spec).await?;
    cluster.until_live("moves", generation).await?;
    cluster.servers().delete("second", &DeleteParams::default()).await?;
    until("the status to name the remaining policy", WAIT_TIMEOUT, async || {
        let server = cluster.servers().get("second").await?;
        let conditions = serde_json::to_value(server.status)?["conditions"].to_string();
        ensure!(conditions.contains("moves"), "{conditions}");
        Ok(())
    })
    .await?;
    cluster.until_denied("moves", "3").await?;
    cluster.delete("moves").await?;
    until("the end of the server", WAIT_TIMEOUT, async || {
        ensure!(cluster.servers().get_opt("second").await?.is_none());
        ensure!(cluster.replicas_of("second").await?.is_empty(), "pods are left over");
        Ok(())
    })
    .await
}

pub async fn scale_up_and_down(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("scale", &deny_with_long_timeout("scale", "1")).await?;
    cluster.until_live("scale", first).await?;
    let summary = async |wanted: &str| {
        until(&format!("the policy on {wanted} replicas"), WAIT_TIMEOUT, async || {
            let replicas = cluster.policies().get("scale").await?.status.and_then(|status| status.replicas);
            let replicas = replicas.context("no replicas")?;
            ensure!(replicas.summary == wanted, "{}", replicas.summary);
            let revision = cluster.revisions_of("scale").await?.pop().context("no revision")?;
            let items = revision.status.context("no status")?.replicas;
            ensure!(format!("{0}/{0}", items.len()) == wanted, "the status has items of deleted pods: {items:#?}");
            Ok(())
        })
        .await
    };
    let begin = Instant::now();
    let load = Load::start(cluster.requester("scale"));
    cluster.change("default", json!({"replicas": REPLICAS + 1})).await?;
    cluster.until_served("default", REPLICAS + 1).await?;
    summary(&format!("{0}/{0}", REPLICAS + 1)).await?;
    cluster.change("default", json!({"replicas": REPLICAS - 1})).await?;
    // An update during the scaling. The replicas that end count until their pods are deleted.
    let second = cluster.write("scale", &deny_with_long_timeout("scale", "2")).await?;
    cluster.until_live("scale", second).await?;
    let switched = Instant::now();
    cluster.until_served("default", REPLICAS - 1).await?;
    summary(&format!("{0}/{0}", REPLICAS - 1)).await?;
    load.finish(&[(first, begin), (second, switched)]).await?;
    cluster.change("default", json!({"replicas": REPLICAS})).await?;
    cluster.until_served("default", REPLICAS).await?;
    cluster.delete("scale").await
}

pub async fn leader_killed_and_frozen(cluster: &TestCluster) -> Result<()> {
    let mut message = 1;
    let generation = cluster.write("leader", &deny("leader", "1")).await?;
    cluster.until_live("leader", generation).await?;
    for signal in [Signal::KILL, Signal::STOP] {
        let leader = cluster.leader().await?;
        let process = cluster.process(&leader).await?;
        kill_process(process, signal)?;
        let killed = Instant::now();
        message += 1;
        let generation = cluster.write("leader", &deny("leader", &message.to_string())).await?;
        let prepared = until("another leader to prepare the generation", WAIT_TIMEOUT, async || {
            let revision = cluster.revisions_of("leader").await?.pop().context("no revision")?;
            ensure!(revision.spec.policy_ref.generation == generation, "the revision of an older generation");
            let conditions = revision.status.context("no status")?.conditions;
            ensure!(conditions.iter().any(|it| it.type_ == "Initialized" && it.status == "True"), "{conditions:#?}");
            Ok(())
        });
        prepared.await?;
        eprintln!(
            "time from {signal:?} of the leader until another leader has prepared the next generation: {:.1} s",
            killed.elapsed().as_secs_f64()
        );
        cluster.until_live("leader", generation).await?;
        if signal == Signal::STOP {
            // Kubernetes may have restarted the container after failed probes. Otherwise the old leader continues, and must
            // notice that another replica leads.
            let _ = kill_process(process, Signal::CONT);
        }
        cluster.until_served("default", REPLICAS).await?;
        cluster.until_denied("leader", &message.to_string()).await?;
    }
    cluster.delete("leader").await
}

pub async fn updates_while_operators_are_killed(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("killed", &deny_with_long_timeout("killed", "1")).await?;
    cluster.until_live("killed", first).await?;
    cluster.until_denied("killed", "1").await?;
    let mut live_times = vec![(first, Instant::now())];
    let load = Load::start(cluster.requester("killed"));
    // Before the switch of the webhook there are at least four changes: of the revision, its preparation, and its replicas.
    for changes in 1..=4 {
        let update = async {
            let message = (first + i64::try_from(changes)?).to_string();
            let generation = cluster.write("killed", &deny_with_long_timeout("killed", &message)).await?;
            cluster.until_live("killed", generation).await?;
            Ok(generation)
        };
        let generation = with_operator_end(update, changes, OperatorEnd::Killed, cluster).await?;
        live_times.push((generation, Instant::now()));
    }
    cluster.until_denied("killed", "5").await?;
    load.finish(&live_times).await?;
    ensure!(cluster.webhooks("killed").await?.len() == 1);
    cluster.delete("killed").await
}

pub async fn bootstrap_with_many_policies(cluster: &TestCluster) -> Result<()> {
    const POLICIES: usize = 50;
    let names: Vec<_> = (0..POLICIES).map(|number| format!("many-{number}")).collect();
    for name in &names {
        cluster.write(name, &deny(name, name)).await?;
    }
    for name in &names {
        cluster.until_live(name, 1).await?;
    }
    // All replicas are deleted at once, as when a cluster starts again after an outage.
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let ours = ListParams::default().labels("proviso.dev/policy-server=default");
    let begin = Instant::now();
    cluster.pods().delete_collection(&now, &ours).await?;
    cluster.until_served("default", REPLICAS).await?;
    eprintln!("time until all new replicas are Ready with {POLICIES} policies: {:.1} s", begin.elapsed().as_secs_f64());
    for name in &names {
        cluster.until_denied(name, name).await?;
    }
    for name in &names {
        cluster.policies().delete(name, &DeleteParams::default()).await?;
    }
    for name in &names {
        until("the deletion of the policy", WAIT_TIMEOUT, async || {
            ensure!(cluster.policies().get_opt(name).await?.is_none());
            Ok(())
        })
        .await?;
    }
    ensure!(cluster.webhooks("many-0").await?.is_empty());
    Ok(())
}

pub async fn server_version_upgrade_loses_no_request(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("upgrade", &deny_with_long_timeout("upgrade", "1")).await?;
    cluster.until_live("upgrade", first).await?;
    cluster.until_denied("upgrade", "1").await?;
    let begin = Instant::now();
    let load = Load::start(cluster.requester("upgrade"));
    // A second run of this flow changes the image back.
    let before = cluster.servers().get("default").await?.spec.image.unwrap_or_default();
    let tag = if before.ends_with(":next") { ":0.1.0" } else { ":next" };
    cluster.change("default", json!({"image": format!("docker.io/proviso/policy-server{tag}")})).await?;
    until("every replica of the next version", WAIT_TIMEOUT, async || {
        let pods = cluster.replicas_of("default").await?;
        for pod in &pods {
            let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone()).unwrap_or_default();
            ensure!(image.ends_with(tag), "{} has {image}", pod.name_any());
        }
        Ok(())
    })
    .await?;
    cluster.until_served("default", REPLICAS).await?;
    load.finish(&[(first, begin)]).await?;
    until("the status to count all replicas", WAIT_TIMEOUT, async || {
        let status = serde_json::to_value(cluster.servers().get("default").await?.status)?;
        ensure!(status["readyReplicas"] == REPLICAS, "{status:#}");
        Ok(())
    })
    .await?;
    cluster.delete("upgrade").await
}
