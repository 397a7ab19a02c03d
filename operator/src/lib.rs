//! The operator: from a policy's newest generation to the webhook that asks it.

pub mod config;
mod objects;
mod policies;

use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use proviso_crds::{ClusterPolicy, Policy};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};
use crate::policies::Context;

/// Runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// When there is no cluster, or a file is missing.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let ca_bundle = std::fs::read(&config.ca_bundle)
        .with_context(|| format!("--ca-bundle {} cannot be read", config.ca_bundle.display()))?;
    let client = Client::try_default().await.context("no cluster: set KUBECONFIG, or run this in a pod")?;
    let context = Arc::new(Context::new(client, config.namespace, ca_bundle));
    tracing::info!(namespace = context.namespace(), "operator started");
    tokio::join!(policies::run::<Policy>(Arc::clone(&context)), policies::run::<ClusterPolicy>(Arc::clone(&context)),);
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
