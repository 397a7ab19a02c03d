//! Hosts and host calls, without programs that call.

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
use proviso_capabilities::{Cluster, FolderObjects, HostContext, Images, Kind, Limits, PolicyHost, ProgramGrants};
use proviso_core::Capabilities;
use proviso_engines::{Deadline, Host as _, HostCall};
use serde_json::Value;

pub const MIB: usize = 1 << 20;

pub fn images() -> Images {
    Images::new(Arc::new(Fetcher::new(None, None, None)))
}

pub fn cluster(client: Client, limits: Limits) -> Arc<HostContext> {
    Arc::new(HostContext::cluster(Cluster::new(client, limits), images()))
}

pub fn folder(objects: Vec<Value>) -> (Arc<HostContext>, Arc<FolderObjects>) {
    let folder = Arc::<FolderObjects>::default();
    folder.replace(objects);
    (Arc::new(HostContext::folder(Arc::clone(&folder), images())), folder)
}

/// Returns the host of a program that may call all capabilities and read these kinds.
pub fn host_for(host_context: &Arc<HostContext>, kinds: &[(&str, &str)], namespace: Option<&str>) -> Arc<PolicyHost> {
    host_with(host_context, &["*"], kinds, namespace)
}

/// Returns the host of a program that may call these capabilities and read these kinds.
pub fn host_with(
    host_context: &Arc<HostContext>,
    capabilities: &[&str],
    kinds: &[(&str, &str)],
    namespace: Option<&str>,
) -> Arc<PolicyHost> {
    let patterns: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
    host_context.host(ProgramGrants {
        capabilities: Capabilities::parse(&patterns).unwrap(),
        capabilities_field: "spec.hostCapabilities".to_owned(),
        resources: kinds.iter().map(|(api_version, kind)| Kind::new(api_version, kind)).collect(),
        resources_field: "spec.contextAwareResources".to_owned(),
        namespace: namespace.map(ToOwned::to_owned),
        pull_secrets: Vec::new(),
        tenant: None,
    })
}

/// Returns a deadline that is long enough for each answer, even on a busy machine.
pub fn default_deadline() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Calls a capability of the host.
pub async fn call_host(host: &PolicyHost, capability: &str, request: Value) -> Result<Value, String> {
    call_host_by(default_deadline(), host, capability, request).await
}

/// Calls a capability of the host with a deadline.
pub async fn call_host_by(
    deadline: Deadline,
    host: &PolicyHost,
    capability: &str,
    request: Value,
) -> Result<Value, String> {
    let (namespace, operation) = capability.split_once('/').unwrap();
    let payload = request.to_string().into_bytes();
    let host_call = HostCall { binding: "kubewarden", namespace, operation, payload: &payload };
    let answer = host.call(host_call, deadline).await?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

/// Returns the names of the objects of a list.
pub fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}
