//! The operator: it runs policy servers, and takes a policy's newest generation to the webhook that asks it.

mod admin;
mod admission;
mod api;
mod authority;
mod cache;
mod caches;
mod cascade;
mod client;
mod config;
mod context;
mod controller;
mod experiments;
mod guarded;
mod kinds;
mod metrics;
#[cfg(test)]
mod mock_api;
mod objects;
mod policies;
mod policy_servers;
mod registered;
mod replicas;
mod revisions;
mod webhook;

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use hyper_util::service::TowerToHyperService;
use kube::Client;
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment};
use proviso_election::{Election, Missing};
use proviso_http::Certificate;
use proviso_http::shutdown::{self, Phase};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::admission::Admission;
use crate::api::FrontProxies;
use crate::authority::Authority;
use crate::config::{Config, LogFormat};
use crate::context::Context;
use crate::guarded::Reports;
use crate::metrics::Metrics;

/// The Lease of the operator that works: of several, one does.
const LEASE: &str = "proviso-operator";
/// How long requests may last that are under way when no more are accepted.
const DRAIN: Duration = Duration::from_secs(10);

/// The whole program. In `main.rs`, it would be compiled twice: generic code belongs to the crate that calls it.
///
/// # Errors
/// When there is no cluster, or the filter of the log cannot be understood.
pub fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    log(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(config))
}

/// Runs until SIGTERM or Ctrl-C.
async fn run(config: Config) -> anyhow::Result<()> {
    let mut phase = shutdown::listen(config.shutdown_delay).context("signals cannot be followed")?;
    let metrics = Arc::new(Metrics::new());
    let client =
        client::connect(Arc::clone(&metrics)).await.context("no cluster: set KUBECONFIG, or run this in a pod")?;
    let certificate = Arc::new(Certificate::default());
    // It goes on while others take over.
    let mut serving = tokio::spawn(serve(&client, &config, &certificate, &metrics, phase.clone()).await?);
    let election = Election::stand(&config.namespace, LEASE, Missing::Make, &config.identity).await?;
    tracing::info!(namespace = config.namespace, identity = config.identity, "operator started");
    let names = admission::names(&config);
    let certified = admission::certificate::keep(&client, &config, names, &certificate);
    let controllers = Controllers::new(&client, &config, &metrics);
    let mut leadership = election.leadership();
    let leading = async {
        loop {
            leadership.won().await;
            metrics.leader.set(1);
            tracing::info!("leading: the controllers start");
            tokio::select! {
                () = controllers.run() => {}
                // What it was about to write, the next one writes too: see `policies::apply`.
                () = leadership.lost() => tracing::warn!("not leading any more: the controllers stop"),
            }
            metrics.leader.set(0);
        }
    };
    tokio::select! {
        _ = phase.wait_for(|phase| *phase != Phase::Serving) => {}
        () = leading => {}
        () = certified => {}
        _ = &mut serving => {}
    }
    election.end().await;
    if !serving.is_finished() {
        serving.await?;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Answers people, the API server and probes, until the process is to end.
async fn serve(
    client: &Client,
    config: &Config,
    certificate: &Arc<Certificate>,
    metrics: &Arc<Metrics>,
    phase: watch::Receiver<Phase>,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let bind = async |flag: &str, address: SocketAddr| {
        TcpListener::bind(address).await.with_context(|| {
            format!("{flag} {address} cannot be listened on: is the port taken? choose another with {flag}")
        })
    };
    let listener = bind("--listen", config.listen).await?;
    let admin = bind("--admin-listen", config.admin_listen).await?;
    tracing::info!(
        listen = format!("https://{}", listener.local_addr()?),
        admin = format!("http://{}", admin.local_addr()?),
        "listening"
    );
    let tls = Arc::clone(certificate).asking_acceptor()?;
    let proxies = Arc::new(FrontProxies::default());
    let api = api::router(client.clone(), &config.namespace, Arc::clone(&proxies));
    let answers = TowerToHyperService::new(Admission::new(client.clone(), config).router().merge(api));
    let probes = TowerToHyperService::new(admin::router(Arc::clone(certificate), Arc::clone(metrics), phase.clone()));
    let client = client.clone();
    Ok(async move {
        let answering = proviso_http::serve(listener, Some(tls), answers, shutdown::draining(phase), DRAIN);
        tokio::select! {
            () = answering => {}
            () = proviso_http::serve(admin, None, probes, pending(), Duration::ZERO) => {}
            () = proxies.follow(client) => {}
        }
    })
}

/// What only one operator does.
struct Controllers {
    authority: Authority,
    client: Client,
    namespace: String,
    retire_after: Duration,
    reports: Arc<Reports>,
    metrics: Arc<Metrics>,
    servers: policy_servers::Settings,
    registration: admission::Registration,
    actions: api::registration::Registration,
}

impl Controllers {
    fn new(client: &Client, config: &Config, metrics: &Arc<Metrics>) -> Self {
        let (namespace, lifetimes) = (&config.namespace, config.lifetimes);
        let authority = Authority::new(client.clone(), namespace.clone(), lifetimes);
        let trusted = || authority.trusted();
        let reports = Arc::new(Reports::new(client.clone()));
        let place = policy_servers::Place { namespace: namespace.clone(), image: config.policy_server_image.clone() };
        Self {
            client: client.clone(),
            namespace: namespace.clone(),
            retire_after: config.retire_after,
            servers: policy_servers::Settings { place, lifetimes },
            reports,
            metrics: Arc::clone(metrics),
            registration: admission::Registration::new(client.clone(), config, trusted()),
            actions: api::registration::Registration::new(client.clone(), config, trusted()),
            authority,
        }
    }

    /// Runs them. Does not end.
    async fn run(&self) {
        // The caches begin anew: what another leader wrote meanwhile is not in them.
        let context = Arc::new(Context::new(
            self.client.clone(),
            self.namespace.clone(),
            self.authority.trusted(),
            self.retire_after,
            Arc::clone(&self.reports),
            Arc::clone(&self.metrics),
        ));
        self.metrics.follow(&context.caches);
        let servers = Arc::new(policy_servers::Context::new(Arc::clone(&context), self.servers.clone()));
        tokio::join!(
            self.authority.run(),
            self.registration.run(),
            self.actions.run(),
            policies::run::<Policy>("policies", Arc::clone(&context)),
            policies::run::<ClusterPolicy>("clusterpolicies", Arc::clone(&context)),
            experiments::run::<PolicyExperiment>("policyexperiments", Arc::clone(&context)),
            experiments::run::<ClusterPolicyExperiment>("clusterpolicyexperiments", Arc::clone(&context)),
            policy_servers::run(Arc::clone(&servers)),
            policy_servers::leader::run(servers),
            // After the controllers, which listen to the first list too.
            context.caches.follow(&self.client, &self.namespace),
        );
    }
}

/// Starts logging to stderr.
fn log(config: &Config) -> anyhow::Result<()> {
    let wanted = EnvFilter::try_new(&config.log).with_context(|| format!("--log {}", config.log))?;
    // The client calls each request that fails an error, without a subject. Whoever asked says what failed, and once.
    let is_named = config.log.contains("kube_client");
    let filter = if is_named { wanted } else { wanted.add_directive("kube_client::client::builder=off".parse()?) };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
