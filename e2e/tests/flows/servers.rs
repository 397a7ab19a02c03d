//! The flows of policy servers and of the operator.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use proviso_e2e::until;
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::load::{Load, deny_in_time};
use crate::restart::{End, in_the_middle_of};
use crate::stage::{PATIENCE, REPLICAS, Stage, deny};

async fn make_server(stage: &Stage, name: &str) -> Result<()> {
    let server = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyServer", "metadata": {"name": name},
        "spec": {"replicas": 1, "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
    });
    stage.apply(&server).await?;
    stage.until_served(name, 1).await
}

pub async fn move_to_another_policy_server(stage: &Stage) -> Result<()> {
    make_server(stage, "second").await?;
    let first = stage.write("moves", &deny_in_time("moves", "1")).await?;
    stage.until_live("moves", first).await?;
    stage.until_denied("moves", "1").await?;
    let begin = Instant::now();
    let load = Load::start(stage.asker("moves"));
    let mut spec = deny_in_time("moves", "2");
    spec["policyServer"] = "second".into();
    let moved = stage.write("moves", &spec).await?;
    stage.until_live("moves", moved).await?;
    let switched = Instant::now();
    stage.until_denied("moves", "2").await?;
    load.finish(&[(first, begin), (moved, switched)]).await?;
    let webhook = stage.webhook("moves").await?.context("no webhook")?;
    ensure!(webhook["clientConfig"]["service"]["name"] == "policy-server-second", "{webhook:#}");
    Ok(())
}

/// Goes on where the one before it ended.
pub async fn policy_server_deleted_with_policies_on_it(stage: &Stage) -> Result<()> {
    if stage.servers().get_opt("second").await?.is_none() {
        make_server(stage, "second").await?;
    }
    let mut spec = deny_in_time("moves", "3");
    spec["policyServer"] = "second".into();
    let generation = stage.write("moves", &spec).await?;
    stage.until_live("moves", generation).await?;
    stage.servers().delete("second", &DeleteParams::default()).await?;
    until("the server to say what keeps it", PATIENCE, async || {
        let server = stage.servers().get("second").await?;
        let conditions = serde_json::to_value(server.status)?["conditions"].to_string();
        ensure!(conditions.contains("moves"), "{conditions}");
        Ok(())
    })
    .await?;
    stage.until_denied("moves", "3").await?;
    stage.delete("moves").await?;
    until("the end of the server", PATIENCE, async || {
        ensure!(stage.servers().get_opt("second").await?.is_none());
        ensure!(stage.replicas_of("second").await?.is_empty(), "pods are left");
        Ok(())
    })
    .await
}

pub async fn scale_up_and_down(stage: &Stage) -> Result<()> {
    let first = stage.write("scale", &deny_in_time("scale", "1")).await?;
    stage.until_live("scale", first).await?;
    let summary = async |wanted: &str| {
        until(&format!("the policy on {wanted} replicas"), PATIENCE, async || {
            let replicas = stage.policies().get("scale").await?.status.and_then(|status| status.replicas);
            let replicas = replicas.context("no replicas")?;
            ensure!(replicas.summary == wanted, "{}", replicas.summary);
            let revision = stage.revisions_of("scale").await?.pop().context("no revision")?;
            let said = revision.status.context("no status")?.replicas;
            ensure!(format!("{0}/{0}", said.len()) == wanted, "items of pods that are gone: {said:#?}");
            Ok(())
        })
        .await
    };
    let begin = Instant::now();
    let load = Load::start(stage.asker("scale"));
    stage.change("default", json!({"replicas": REPLICAS + 1})).await?;
    stage.until_served("default", REPLICAS + 1).await?;
    summary(&format!("{0}/{0}", REPLICAS + 1)).await?;
    stage.change("default", json!({"replicas": REPLICAS - 1})).await?;
    // In the middle of it, an update: the new replica counts until it is gone.
    let second = stage.write("scale", &deny_in_time("scale", "2")).await?;
    stage.until_live("scale", second).await?;
    let switched = Instant::now();
    stage.until_served("default", REPLICAS - 1).await?;
    summary(&format!("{0}/{0}", REPLICAS - 1)).await?;
    load.finish(&[(first, begin), (second, switched)]).await?;
    stage.change("default", json!({"replicas": REPLICAS})).await?;
    stage.until_served("default", REPLICAS).await?;
    stage.delete("scale").await
}

pub async fn leader_killed_and_frozen(stage: &Stage) -> Result<()> {
    let mut message = 1;
    let generation = stage.write("leader", &deny("leader", "1")).await?;
    stage.until_live("leader", generation).await?;
    for signal in [Signal::KILL, Signal::STOP] {
        let leader = stage.leader().await?;
        let process = stage.process(&leader).await?;
        kill_process(process, signal)?;
        let killed = Instant::now();
        message += 1;
        let generation = stage.write("leader", &deny("leader", &message.to_string())).await?;
        let prepared = until("somebody to prepare it", PATIENCE, async || {
            let revision = stage.revisions_of("leader").await?.pop().context("no revision")?;
            ensure!(revision.spec.policy_ref.generation == generation, "an older one");
            let conditions = revision.status.context("no status")?.conditions;
            ensure!(conditions.iter().any(|it| it.type_ == "Initialized" && it.status == "True"), "{conditions:#?}");
            Ok(())
        });
        prepared.await?;
        eprintln!(
            "{signal:?} of the leader, until another has prepared the next generation: {:.1} s",
            killed.elapsed().as_secs_f64()
        );
        stage.until_live("leader", generation).await?;
        if signal == Signal::STOP {
            // Kubernetes restarts what does not answer its probes; one that only slept finds itself replaced.
            let _ = kill_process(process, Signal::CONT);
        }
        stage.until_served("default", REPLICAS).await?;
        stage.until_denied("leader", &message.to_string()).await?;
    }
    stage.delete("leader").await
}

pub async fn updates_while_operators_are_killed(stage: &Stage) -> Result<()> {
    let first = stage.write("killed", &deny_in_time("killed", "1")).await?;
    stage.until_live("killed", first).await?;
    stage.until_denied("killed", "1").await?;
    let mut seen = vec![(first, Instant::now())];
    let load = Load::start(stage.asker("killed"));
    // Before the webhook is switched there are at least four: the revision, its preparation, and each replica.
    for changes in 1..=4 {
        let update = async {
            let message = (first + i64::try_from(changes)?).to_string();
            let generation = stage.write("killed", &deny_in_time("killed", &message)).await?;
            stage.until_live("killed", generation).await?;
            Ok(generation)
        };
        let generation = in_the_middle_of(update, changes, End::Killed, stage).await?;
        seen.push((generation, Instant::now()));
    }
    stage.until_denied("killed", "5").await?;
    load.finish(&seen).await?;
    ensure!(stage.webhooks("killed").await?.len() == 1);
    stage.delete("killed").await
}

pub async fn bootstrap_with_many_policies(stage: &Stage) -> Result<()> {
    const POLICIES: usize = 50;
    let names: Vec<_> = (0..POLICIES).map(|number| format!("many-{number}")).collect();
    for name in &names {
        stage.write(name, &deny(name, name)).await?;
    }
    for name in &names {
        stage.until_live(name, 1).await?;
    }
    // Everything goes at once, as when a cluster comes back from an outage.
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let ours = ListParams::default().labels("proviso.dev/policy-server=default");
    let begin = Instant::now();
    stage.pods().delete_collection(&now, &ours).await?;
    stage.until_served("default", REPLICAS).await?;
    eprintln!("{POLICIES} policies, all replicas gone, until all are Ready: {:.1} s", begin.elapsed().as_secs_f64());
    for name in &names {
        stage.until_denied(name, name).await?;
    }
    for name in &names {
        stage.policies().delete(name, &DeleteParams::default()).await?;
    }
    for name in &names {
        until("its end", PATIENCE, async || {
            ensure!(stage.policies().get_opt(name).await?.is_none());
            Ok(())
        })
        .await?;
    }
    ensure!(stage.webhooks("many-0").await?.is_empty());
    Ok(())
}

pub async fn server_version_upgrade_loses_no_request(stage: &Stage) -> Result<()> {
    let first = stage.write("upgrade", &deny_in_time("upgrade", "1")).await?;
    stage.until_live("upgrade", first).await?;
    stage.until_denied("upgrade", "1").await?;
    let begin = Instant::now();
    let load = Load::start(stage.asker("upgrade"));
    // The second time it is the way back.
    let before = stage.servers().get("default").await?.spec.image.unwrap_or_default();
    let tag = if before.ends_with(":next") { ":0.1.0" } else { ":next" };
    stage.change("default", json!({"image": format!("docker.io/proviso/policy-server{tag}")})).await?;
    until("every replica of the next version", PATIENCE, async || {
        let pods = stage.replicas_of("default").await?;
        for pod in &pods {
            let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone()).unwrap_or_default();
            ensure!(image.ends_with(tag), "{} has {image}", pod.name_any());
        }
        Ok(())
    })
    .await?;
    stage.until_served("default", REPLICAS).await?;
    load.finish(&[(first, begin)]).await?;
    until("the status to say so", PATIENCE, async || {
        let status = serde_json::to_value(stage.servers().get("default").await?.status)?;
        ensure!(status["readyReplicas"] == REPLICAS, "{status:#}");
        Ok(())
    })
    .await?;
    stage.delete("upgrade").await
}
