//! The control plane itself: what the other tests stand on.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use proviso_e2e::{ControlPlane, Fault, Options, until};
use serde_json::json;

const PATIENCE: Duration = Duration::from_mins(1);

fn named<K: serde::de::DeserializeOwned>(name: &str) -> Result<K> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}}))?)
}

async fn create(client: &Client, name: &str) -> Result<ConfigMap> {
    let api = Api::<ConfigMap>::default_namespaced(client.clone());
    Ok(api.create(&PostParams::default(), &named(name)?).await?)
}

#[tokio::test]
async fn a_control_plane_serves_and_its_controllers_work() -> Result<()> {
    let start = Instant::now();
    let plane = ControlPlane::start("a-control-plane-serves").await?;
    eprintln!("up in {:.1} s", start.elapsed().as_secs_f64());
    plane.ensure_controllers()?;
    let client = plane.client().await?;
    ensure!(client.apiserver_version().await?.git_version.starts_with("v1.36."));
    // The controller manager empties a namespace that is deleted: then it goes.
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &named("short-lived")?).await?;
    let inside = Api::<ConfigMap>::namespaced(client, "short-lived");
    inside.create(&PostParams::default(), &named("content")?).await?;
    namespaces.delete("short-lived", &DeleteParams::default()).await?;
    until("the namespace to go", PATIENCE, async || {
        ensure!(namespaces.get_opt("short-lived").await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn two_api_servers_show_one_cluster() -> Result<()> {
    let mut plane = ControlPlane::start("two-api-servers").await?;
    let second = plane.add_api_server().await?;
    let (first, other) = (plane.client().await?, plane.api_server(second).client().await?);
    create(&first, "by-the-first").await?;
    let seen = Api::<ConfigMap>::default_namespaced(other.clone()).get("by-the-first").await?;
    ensure!(seen.name_any() == "by-the-first");
    // The second goes on when the first is gone.
    plane.api_server(0).process().kill();
    create(&other, "without-the-first").await?;
    ensure!(create(&first, "to-nobody").await.is_err());
    plane.api_server(0).process().restart()?;
    plane.api_server(0).until_ready().await?;
    Api::<ConfigMap>::default_namespaced(plane.client().await?).get("without-the-first").await?;
    Ok(())
}

#[tokio::test]
async fn a_frozen_api_server_answers_after_it_is_thawed() -> Result<()> {
    let mut plane = ControlPlane::start("a-frozen-api-server").await?;
    let client = plane.client().await?;
    plane.api_server(0).process().freeze()?;
    let request = create(&client, "patience");
    tokio::pin!(request);
    ensure!(tokio::time::timeout(Duration::from_millis(500), &mut request).await.is_err(), "somebody answered");
    plane.api_server(0).process().thaw()?;
    request.await?;
    Ok(())
}

#[tokio::test]
async fn the_network_to_etcd_can_fail_and_heal() -> Result<()> {
    let plane = ControlPlane::start_with("the-network-to-etcd", Options { etcd_link: true }).await?;
    let client = plane.client().await?;
    create(&client, "before").await?;
    let delay = Duration::from_millis(300);
    plane.etcd_link()?.set(Fault::Delay(delay));
    let start = Instant::now();
    create(&client, "slow").await?;
    ensure!(start.elapsed() >= delay, "it took {:?}", start.elapsed());
    plane.etcd_link()?.set(Fault::Hang);
    ensure!(tokio::time::timeout(Duration::from_secs(1), create(&client, "never")).await.is_err());
    plane.etcd_link()?.set(Fault::None);
    until("writes after the fault", PATIENCE, async || create(&client, "after").await.map(drop)).await
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_is_gone() -> Result<()> {
    let mut plane = ControlPlane::start("a-watch-from-before").await?;
    let client = plane.client().await?;
    let api = Api::<ConfigMap>::default_namespaced(client.clone());
    let old = api.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    for name in ["a", "b", "c"] {
        create(&client, name).await?;
    }
    plane.expire_watches().await?;
    let mut events = std::pin::pin!(api.watch(&WatchParams::default(), &old).await?);
    match events.next().await {
        Some(Ok(WatchEvent::Error(status))) if status.code == 410 => Ok(()),
        Some(Err(kube::Error::Api(status))) if status.code == 410 => Ok(()),
        other => bail!("not 410 Gone but {other:?}"),
    }
}
