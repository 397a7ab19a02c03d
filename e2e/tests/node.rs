//! A full node: what the tests that run pods stand on. Needs root: `make e2e`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{LogParams, PostParams};
use proviso_e2e::{Node, until};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);

/// Says why a test was passed by, past the capture of the test runner; where that must not happen, it is a failure.
fn is_skipped() -> Result<bool> {
    if Node::is_possible() {
        return Ok(false);
    }
    let reason = "skipped: a full node needs root";
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        bail!("{reason}");
    }
    writeln!(std::io::stderr(), "{reason}")?;
    Ok(true)
}

/// A pod of the default namespace that runs `/pod` with these arguments.
async fn create_pod(node: &Node, name: &str, arguments: &[&str]) -> Result<Api<Pod>> {
    let container = json!({"name": "pod", "image": Node::pod_image(), "args": arguments});
    create_pod_with(node, name, container).await
}

async fn create_pod_with(node: &Node, name: &str, container: Value) -> Result<Api<Pod>> {
    let pods = Api::<Pod>::default_namespaced(node.client().await?);
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(pods)
}

async fn until_ready(pods: &Api<Pod>, name: &str) -> Result<()> {
    until("a Ready pod", PATIENCE, async || {
        let status = pods.get(name).await?.status.context("no status")?;
        let ready = status.conditions.iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True");
        ensure!(ready, "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_becomes_ready() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let start = Instant::now();
    let node = Node::start("a-pod-becomes-ready").await?;
    eprintln!("the node is Ready after {:.1} s", start.elapsed().as_secs_f64());
    let pods = create_pod(&node, "first", &[]).await?;
    until_ready(&pods, "first").await?;
    eprintln!("the first pod is Ready after {:.1} s", start.elapsed().as_secs_f64());
    let end = Instant::now();
    drop(node);
    eprintln!("gone in {:.1} s", end.elapsed().as_secs_f64());
    Ok(())
}
