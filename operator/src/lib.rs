//! The operator: it runs policy servers, and takes a policy's newest generation to the webhook that asks it.

mod authority;
pub mod config;
mod objects;
mod policies;
mod policy_servers;

use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use proviso_crds::{ClusterPolicy, Policy};
use tracing_subscriber::EnvFilter;

use crate::authority::Authority;
use crate::config::{Config, LogFormat};

/// Runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// When there is no cluster.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let Config { namespace, policy_server_image: image, lifetimes, .. } = config;
    let client = Client::try_default().await.context("no cluster: set KUBECONFIG, or run this in a pod")?;
    let authority = Authority::new(client.clone(), namespace.clone(), lifetimes);
    let policies = Arc::new(policies::Context::new(client.clone(), namespace.clone(), authority.trusted()));
    let place = policy_servers::build::Place { namespace: namespace.clone(), image };
    let servers = Arc::new(policy_servers::Context::new(client, place, lifetimes, authority.trusted()));
    tracing::info!(namespace, "operator started");
    let controllers = async {
        tokio::join!(
            policies::run::<Policy>(Arc::clone(&policies)),
            policies::run::<ClusterPolicy>(Arc::clone(&policies)),
            policy_servers::run(Arc::clone(&servers)),
            policy_servers::leader::run(Arc::clone(&servers)),
        )
    };
    tokio::select! {
        _ = controllers => {}
        // Without an end of its own.
        () = authority.run() => {}
    }
    tracing::info!("stopped");
    Ok(())
}

/// Starts logging to stderr; `RUST_LOG` chooses what.
pub fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
