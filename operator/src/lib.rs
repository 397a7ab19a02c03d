//! The operator: runs policy servers in a cluster, rolls out each new generation of a policy, and points the webhook
//! at the live generation.

mod admin;
mod admission;
mod api;
mod ca;
mod cache;
mod caches;
mod caller_tokens;
mod cascade;
mod client;
mod config;
mod configuration_api;
mod configurations;
mod context;
mod controller;
mod experiments;
mod jobs;
mod kinds;
mod malformed;
mod metrics;
#[cfg(test)]
mod mock_api;
mod objects;
mod orphans;
mod policies;
mod policy_servers;
mod registration;
mod rendering;
mod replicas;
mod revisions;
mod subscriptions;
mod tenants;
mod uniqueness;
mod usage;
mod webhook;

use std::future::pending;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use hyper_util::service::TowerToHyperService;
use kube::Client;
use proviso_authentication::{MetricsAccess, Tokens};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment};
use proviso_election::{Election, MissingLease};
use proviso_http::shutdown::{self, Phase};
use proviso_http::{Certificate, HttpService, Limits};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing_subscriber::EnvFilter;

use crate::admission::Admission;
use crate::api::FrontProxies;
use crate::ca::CertificateAuthority;
use crate::config::{Config, LogFormat};
use crate::configuration_api::ClusterStore;
use crate::context::Context;
use crate::malformed::Reports;
use crate::metrics::Metrics;
use crate::rendering::Renderings;
use crate::usage::Usage;

/// The Lease by which the replicas of the operator elect a leader. Only the leader runs the controllers.
const LEASE: &str = "proviso-operator";
/// The memory of all requests in flight, in bytes: two of the largest reviews, or many of the usual size. The chart limits the operator
/// to 384 MiB, of which five child processes may take 64 MiB each: two checks of `kubectl apply`, a validation, and two for templates.
const REQUEST_MEMORY: usize = 48 * 1024 * 1024;
/// The time limit for requests in flight during shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the operator until SIGTERM or Ctrl-C. This function is in the library because `main.rs` would compile generic
/// code a second time.
///
/// # Errors
/// If no cluster can be reached, an address cannot be bound, or the log filter is invalid.
pub fn main() -> anyhow::Result<ExitCode> {
    // The operator starts this program again to check a policy or to render templates. Clap does not know these internal commands.
    let job = admission::run_check_job(std::env::args_os());
    if let Some(code) = job.or_else(|| rendering::run_rendering_job(std::env::args_os())) {
        return Ok(code);
    }
    let config = Config::parse();
    log(&config)?;
    proviso_memory::return_freed_memory();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(proviso_tasks::exit_on_panic("operator", run(config)))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs until SIGTERM or Ctrl-C.
async fn run(config: Config) -> anyhow::Result<()> {
    let mut phase = shutdown::listen(config.shutdown_delay).context("cannot listen for signals")?;
    let metrics = Arc::new(Metrics::new());
    let client = client::connect(Arc::clone(&metrics))
        .await
        .context("no Kubernetes cluster: set KUBECONFIG, or run the operator in a pod")?;
    let certificate = Arc::new(Certificate::default());
    // A task of its own, so that this replica keeps answering while another replica takes over.
    let usage = Arc::new(Usage::new(config.namespace_limits));
    let tokens = Arc::<admission::Tokens>::default();
    let requests = Arc::<admission::RequestPolicies>::default();
    let subscriptions = Arc::<admission::SubscriptionNames>::default();
    let names_in_use = (Arc::clone(&requests), Arc::clone(&subscriptions));
    let admission = Admission::new(client.clone(), &config, Arc::clone(&tokens), Arc::clone(&usage), names_in_use);
    let renderings = Arc::<Renderings>::default();
    let store = || ClusterStore::new(client.clone(), &config.namespace, Arc::clone(&renderings));
    let configuration = config.configuration.then(|| Arc::new(store()));
    let routed = (admission, configuration.clone());
    let serving = serve(&client, &config, (&certificate, routed), &metrics, phase.clone()).await?;
    let mut serving = proviso_tasks::spawn("server", serving);
    let election = Election::join(&config.namespace, LEASE, MissingLease::Create, &config.identity).await?;
    tracing::info!(namespace = config.namespace, identity = config.identity, "operator started");
    let names = admission::server_names(&config);
    let renewing_certificate = admission::certificate::maintain(&client, &config, names, &certificate, &tokens);
    let commands = client::connect_for_commands(Arc::clone(&metrics)).await?;
    let delivering = (commands, Arc::clone(&renderings));
    let controllers = Controllers::new(&client, delivering, &config, &metrics, Arc::clone(&usage));
    let mut leadership = election.leadership();
    let leading = async {
        loop {
            leadership.won().await;
            metrics.leader.set(1);
            tracing::info!("leading: the controllers start");
            tokio::select! {
                () = controllers.run() => {}
                // Stopping between two writes is safe: the next leader repeats them (see `policies::apply`).
                () = leadership.lost() => tracing::warn!("no longer leading: the controllers stop"),
            }
            metrics.leader.set(0);
            metrics.subscriptions.set(0);
        }
    };
    tokio::select! {
        _ = phase.wait_for(|phase| *phase != Phase::Serving) => {}
        () = leading => {}
        () = renewing_certificate => {}
        () = usage.follow(&client, &config.namespace) => {}
        () = requests.follow(&client) => {}
        () = configuration_api::follow(configuration.as_deref()) => {}
        () = subscriptions.follow(&client) => {}
        _ = &mut serving => {}
    }
    election.end().await;
    if !serving.is_finished() {
        serving.await?;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Serves the API, the admission webhook and the admin port until shutdown.
async fn serve(
    client: &Client,
    config: &Config,
    (certificate, (admission, configuration)): (&Arc<Certificate>, (Admission, Option<Arc<ClusterStore>>)),
    metrics: &Arc<Metrics>,
    phase: watch::Receiver<Phase>,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let bind = async |flag: &str, address: SocketAddr| {
        TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {flag} {address}: the port may be in use; choose another one with {flag}")
        })
    };
    let listener = bind("--listen", config.listen).await?;
    let admin = bind("--admin-listen", config.admin_listen).await?;
    let metrics_listener = match config.metrics_listen {
        Some(address) => Some(bind("--metrics-listen", address).await?),
        None => None,
    };
    tracing::info!(
        listen = format!("https://{}", listener.local_addr()?),
        admin = format!("http://{}", admin.local_addr()?),
        metrics = metrics_listener.as_ref().and_then(|it| Some(format!("https://{}", it.local_addr().ok()?))),
        "listening"
    );
    let tls = Arc::clone(certificate).acceptor_with_client_certificates()?;
    let proxies = Arc::new(FrontProxies::default());
    let tokens = Tokens::new(client.clone());
    let callers = (Arc::clone(&proxies), tokens.clone());
    let api = api::router(client.clone(), config, callers, (configuration, phase.clone()));
    let answers = TowerToHyperService::new(admission.router().merge(api));
    let limits = Limits::within(REQUEST_MEMORY);
    let metrics = (Arc::clone(metrics), Arc::clone(&limits));
    let open_metrics = metrics_listener.is_none().then(|| metrics.clone());
    let probes = TowerToHyperService::new(admin::router(Arc::clone(certificate), open_metrics, phase.clone()));
    let access = MetricsAccess::new(client.clone(), tokens);
    let metrics = TowerToHyperService::new(admin::metrics_router(metrics, access));
    let metrics_tls = Arc::clone(certificate).acceptor()?;
    let client = client.clone();
    Ok(async move {
        let answering =
            proviso_http::serve(listener, Some(tls), limits, answers, shutdown::draining(phase), DRAIN_TIMEOUT);
        tokio::select! {
            () = answering => {}
            () = proviso_http::serve(admin, None, Limits::small(), probes, pending(), Duration::ZERO) => {}
            () = serve_metrics(metrics_listener, metrics_tls, metrics) => {}
            () = proxies.follow(client) => {}
        }
    })
}

/// Serves the metrics at `--metrics-listen`. Never returns.
async fn serve_metrics(listener: Option<TcpListener>, tls: TlsAcceptor, metrics: impl HttpService) {
    match listener {
        Some(listener) => {
            proviso_http::serve(listener, Some(tls), Limits::small(), metrics, pending(), Duration::ZERO).await;
        }
        None => pending().await,
    }
}

/// The controllers, which only the leader runs.
struct Controllers {
    ca: CertificateAuthority,
    client: Client,
    namespace: String,
    retire_after: Duration,
    reports: Arc<Reports>,
    metrics: Arc<Metrics>,
    usage: Arc<Usage>,
    servers: policy_servers::Settings,
    /// The delivery to components; `None` if `--configuration` is false.
    subscriptions: Option<subscriptions::Settings>,
    registration: admission::Registration,
    actions: api::registration::Registration,
}

impl Controllers {
    fn new(
        client: &Client,
        (commands, renderings): (Client, Arc<Renderings>),
        config: &Config,
        metrics: &Arc<Metrics>,
        usage: Arc<Usage>,
    ) -> Self {
        let (namespace, lifetimes) = (&config.namespace, config.lifetimes);
        let ca = CertificateAuthority::new(client.clone(), namespace.clone(), lifetimes);
        let subscribe = || ca.subscribe();
        let reports = Arc::new(Reports::new(client.clone()));
        let defaults = policy_servers::ServerDefaults {
            namespace: namespace.clone(),
            image: config.policy_server_image.clone(),
            authenticates_metrics: config.metrics_listen.is_some(),
        };
        Self {
            client: client.clone(),
            namespace: namespace.clone(),
            retire_after: config.retire_after,
            servers: policy_servers::Settings { defaults, lifetimes },
            subscriptions: config.configuration.then(|| subscriptions::Settings {
                commands,
                catch_up_interval: config.catch_up_interval,
                running: Arc::default(),
                renderings,
            }),
            reports,
            metrics: Arc::clone(metrics),
            usage,
            registration: admission::Registration::new(client.clone(), config, subscribe()),
            actions: api::registration::Registration::new(client.clone(), config, subscribe()),
            ca,
        }
    }

    /// Runs the controllers. Never returns.
    async fn run(&self) {
        // New caches, because the old ones lack the objects that another leader has written in the meantime.
        let context = Arc::new(Context::new(
            self.client.clone(),
            self.namespace.clone(),
            self.ca.subscribe(),
            self.retire_after,
            Arc::clone(&self.reports),
            Arc::clone(&self.metrics),
            Arc::clone(&self.usage),
        ));
        self.metrics.follow(&context.caches);
        let servers = Arc::new(policy_servers::Context::new(Arc::clone(&context), self.servers.clone()));
        tokio::join!(
            self.ca.run(),
            self.registration.run(),
            self.actions.run(),
            policies::run::<Policy>("policies", Arc::clone(&context)),
            policies::run::<ClusterPolicy>("clusterpolicies", Arc::clone(&context)),
            experiments::run::<PolicyExperiment>("policyexperiments", Arc::clone(&context)),
            experiments::run::<ClusterPolicyExperiment>("clusterpolicyexperiments", Arc::clone(&context)),
            policy_servers::run(Arc::clone(&servers)),
            policy_servers::leader::run(servers),
            orphans::run(Arc::clone(&context)),
            self.deliver(Arc::clone(&context)),
            // Last, so that the controllers already listen when the first list arrives.
            context.caches.follow(&self.client, &self.namespace),
        );
    }
}

impl Controllers {
    /// Delivers the policies of subscriptions, unless that is switched off. Never returns.
    async fn deliver(&self, context: Arc<Context>) {
        match &self.subscriptions {
            Some(settings) => Box::pin(subscriptions::run(context, settings)).await,
            None => pending().await,
        }
    }
}

/// Starts logging to stderr.
fn log(config: &Config) -> anyhow::Result<()> {
    let requested = EnvFilter::try_new(&config.log).with_context(|| format!("--log {}", config.log))?;
    // kube logs each failed request as an error, without naming the object. The caller logs the failure itself, with
    // the object.
    let is_named = config.log.contains("kube_client");
    let filter =
        if is_named { requested } else { requested.add_directive("kube_client::client::builder=off".parse()?) };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
