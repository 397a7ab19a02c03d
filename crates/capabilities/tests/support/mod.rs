//! Programs that ask, without programs.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "each test uses its own part; clippy knows only #[test] functions as tests"
)]

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use proviso_artifacts::Fetcher;
use proviso_capabilities::{Cluster, FolderObjects, Images, Kind, Limits, ProgramHost, Rights, World};
use proviso_core::Capabilities;
use proviso_engines::{Deadline, Host as _, HostCall};
use serde_json::Value;

pub const MIB: usize = 1 << 20;

pub fn images() -> Images {
    Images::new(Arc::new(Fetcher::new(None, None, None)))
}

pub fn cluster(client: Client, limits: Limits) -> Arc<World> {
    Arc::new(World::cluster(Cluster::new(client, limits), images()))
}

pub fn folder(objects: Vec<Value>) -> (Arc<World>, Arc<FolderObjects>) {
    let folder = Arc::<FolderObjects>::default();
    folder.replace(objects);
    (Arc::new(World::folder(Arc::clone(&folder), images())), folder)
}

/// A program that may call everything and read these kinds.
pub fn reading(world: &Arc<World>, kinds: &[(&str, &str)], namespace: Option<&str>) -> Arc<ProgramHost> {
    with(world, &["*"], kinds, namespace)
}

pub fn with(
    world: &Arc<World>,
    capabilities: &[&str],
    kinds: &[(&str, &str)],
    namespace: Option<&str>,
) -> Arc<ProgramHost> {
    let patterns: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
    world.host(Rights {
        capabilities: Capabilities::parse(&patterns).unwrap(),
        capabilities_field: "spec.hostCapabilities".to_owned(),
        resources: kinds.iter().map(|(api_version, kind)| Kind::new(api_version, kind)).collect(),
        resources_field: "spec.contextAwareResources".to_owned(),
        namespace: namespace.map(ToOwned::to_owned),
        pull_secrets: Vec::new(),
    })
}

/// Long enough for every answer, also on a busy machine.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Calls the host.
pub async fn ask(host: &ProgramHost, capability: &str, request: Value) -> Result<Value, String> {
    ask_by(soon(), host, capability, request).await
}

pub async fn ask_by(deadline: Deadline, host: &ProgramHost, capability: &str, request: Value) -> Result<Value, String> {
    let (namespace, operation) = capability.split_once('/').unwrap();
    let payload = request.to_string().into_bytes();
    let call = HostCall { binding: "kubewarden", namespace, operation, payload: &payload };
    let answer = host.call(call, deadline).await?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

/// The names of the objects of a list.
pub fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}
