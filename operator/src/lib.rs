//! The operator: from a policy's newest generation to the webhook that asks it.

pub mod admin;
pub mod admission;
pub mod config;
mod policies;

use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use proviso_crds::{ClusterPolicy, Policy};
use proviso_election::{Election, Missing};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};
use crate::policies::Context;

/// The Lease of the operator that works: of several, one does.
const LEASE: &str = "proviso-operator";

/// Runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// When there is no cluster, or a file is missing.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let ca_bundle = std::fs::read(&config.ca_bundle)
        .with_context(|| format!("--ca-bundle {} cannot be read", config.ca_bundle.display()))?;
    let client = Client::try_default().await.context("no cluster: set KUBECONFIG, or run this in a pod")?;
    let election = Election::stand(&config.namespace, LEASE, Missing::Make, &config.identity).await?;
    let context = Arc::new(Context::new(client, config.namespace, ca_bundle, config.retire_after));
    tracing::info!(namespace = context.namespace(), identity = config.identity, "operator started");
    let mut leadership = election.leadership();
    let stop = stop()?;
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            () = leadership.won() => {}
        }
        tracing::info!("leading: the controllers start");
        tokio::select! {
            () = &mut stop => break,
            () = control(&context) => break,
            // What it was about to write, the next one writes too: see `policies::apply`.
            () = leadership.lost() => tracing::warn!("not leading any more: the controllers stop"),
        }
    }
    election.end().await;
    tracing::info!("stopped");
    Ok(())
}

/// Runs the controllers.
async fn control(context: &Arc<Context>) {
    tokio::join!(policies::run::<Policy>(Arc::clone(context)), policies::run::<ClusterPolicy>(Arc::clone(context)));
}

/// Waits for SIGTERM or Ctrl-C.
fn stop() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
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
