//! The policy server: loads, serves and previews policies, over a folder of manifests or as a replica in a cluster.

#![cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "some functions serve replicas in a cluster only"))]

mod admin;
mod api;
mod budgets;
mod callers;
#[cfg(feature = "cluster")]
mod cluster;
mod compile;
mod config;
mod configuration;
mod container;
mod decide;
mod denial_log;
mod folder;
mod followed_file;
mod lifecycle;
mod logging;
mod manifests;
mod metrics;
mod modules;
mod notify_on_drop;
mod preview;
mod program;
mod requests;
mod routes;
mod start;
mod state;
mod table;
mod tenants;
mod tls;

use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
#[cfg(feature = "cluster")]
use axum::middleware::from_fn_with_state;
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::service::TowerToHyperService;
use proviso_artifacts::{Cache, Fetcher, SigningKeys, Volume};
#[cfg(feature = "cluster")]
use proviso_authentication::{MetricsAccess, Tokens};
use proviso_capabilities::{FolderObjects, HostContext, Images};
use proviso_engines::wasm;
#[cfg(feature = "cluster")]
use proviso_http::Certificate;
use proviso_http::shutdown::{self, Phase};
use proviso_http::{Limits, default_request_memory};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::api::{Access, Api};
use crate::budgets::Budgets;
use crate::callers::CallerTokens;
use crate::compile::Compilers;
use crate::config::{Config, SharedCache, Source};
use crate::configuration::FolderConfiguration;
use crate::container::Container;
use crate::folder::FolderSource;
use crate::lifecycle::prepare::{Preparer, TimeLimits};
use crate::metrics::Metrics;
use crate::modules::Modules;
use crate::preview::PreviewQueue;
#[cfg(feature = "cluster")]
use crate::requests::CallerReviews;
use crate::routes::Server;
use crate::state::StateFile;
use crate::table::SharedTable;
use crate::tenants::TenantSettings;

pub use crate::start::main;

/// The time that requests have to finish at shutdown, in addition to the longest evaluation. Queued previews have the same time
/// after the requests.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the server until it receives SIGTERM or SIGINT.
async fn run(config: Config, container: Container) -> anyhow::Result<()> {
    let phase = shutdown::listen(config.shutdown_delay).context("cannot listen for signals")?;
    let metrics = Arc::new(Metrics::new());
    let listeners = Listeners::bind(&config).await?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let certificate = config.tls.clone().map(|files| tls::certificate(files, Arc::clone(&metrics))).transpose()?;
    let tls =
        certificate.clone().map(|certificate| tls::acceptor(certificate, config.client_ca.clone())).transpose()?;

    let callers = config.caller_tokens.clone().map(CallerTokens::follow).transpose().map_err(anyhow::Error::msg)?;
    let _lock = config.state_dir.as_deref().map(state::lock).transpose().context("--state-dir")?;
    let _deliveries_lock = config.deliveries.deliver_to.as_deref().map(configuration::lock).transpose()?;
    let leads = Leads::default();
    let budgets = Budgets::new(config.concurrency, config.memory_limit, container);
    metrics.follow(budgets.clone());
    let places = u32::try_from(budgets.places.limits().total).unwrap_or(u32::MAX);
    let wasm_memory_mib = budgets.memory.limits().total >> 20;
    let fetcher = fetcher(&config, &leads)?;
    let images = Images::new(Arc::clone(&fetcher));
    let preparer_over = preparer_over(&config, container, budgets, fetcher)?;
    let table = Arc::<SharedTable>::default();
    let (previews, preview_worker) = PreviewQueue::start(config.preview_queue, places, config.preview_priority)
        .context("the preview worker cannot be started")?;
    let policies = config.source.to_string();
    #[cfg(feature = "cluster")]
    let mut election = None;
    let api;
    let source_task: BoxFuture<'static, ()> = match config.source {
        Source::Folder(path) => {
            let state = config.state_dir.as_deref().map(StateFile::in_folder);
            let objects = Arc::<FolderObjects>::default();
            let preparer = preparer_over(HostContext::folder(Arc::clone(&objects), images));
            let source = FolderSource::new(preparer, Arc::clone(&table), Arc::clone(&metrics), state, objects)?;
            let (deliveries, delivering) =
                configuration::start(config.deliveries, source.configuration(), Arc::clone(&metrics));
            let instance = proviso_configuration_api::instance_of(&path.display().to_string());
            let configuration = FolderConfiguration::new(deliveries, instance);
            let (handle, task) = source.follow(path);
            let requests = requests::router(Arc::clone(&table), previews.clone());
            let access = Access::new(config.listen.ip(), config.api_token_file)?;
            api = access.map(|access| Api::new(handle, configuration, requests, access, &phase));
            Box::pin(async { _ = tokio::join!(task, delivering) })
        }
        #[cfg(feature = "cluster")]
        Source::Cluster(replica) => {
            let prepare = |objects| preparer_over(HostContext::cluster(objects, images));
            let policy_server = replica.policy_server.clone();
            let (shared, counted) = (Arc::clone(&table), Arc::clone(&metrics));
            let (joined, task) = cluster::join(replica, config.context_memory, prepare, shared, counted).await?;
            let leadership = joined.leadership();
            // Nothing else sets it.
            let _ = leads.set(Box::new(move || leadership.is_leader()));
            election = Some(joined);
            let callers = CallerReviews::new(cluster::client().await?, &policy_server, Arc::clone(&metrics));
            api = Some(Api::of_requests(requests::reviewed_router(Arc::clone(&table), previews.clone(), callers)));
            task
        }
        #[cfg(not(feature = "cluster"))]
        Source::Cluster(_) => anyhow::bail!(
            "--policy-server: this program was built without the feature `cluster`; build it with \
             `cargo build -p policy-server`, or serve a folder with --manifests"
        ),
    };

    let limits = Limits::within(config.request_memory.unwrap_or_else(|| default_request_memory(container.memory)));
    let server = Arc::new(Server { limits, callers, table, metrics, previews, phase: phase.clone() });
    listeners.log(&policies, scheme)?;
    tracing::info!(places, wasm_memory_mib, "budgets of evaluations");
    let Listeners { reviews, admin, metrics: metrics_listener } = listeners;
    let source_task = proviso_tasks::spawn("policies", source_task);
    // The admin port answers until the last request is answered: probes must see that the server shuts down.
    let admin = serve_admin(admin, admin::router(Arc::clone(&server), metrics_listener.is_none()));
    #[cfg(feature = "cluster")]
    let metrics = match metrics_listener.zip(certificate) {
        Some((listener, certificate)) => Some(serve_metrics(listener, certificate, Arc::clone(&server)).await?),
        None => None,
    };
    serve_requests(reviews, tls, server, api, phase).await;
    source_task.abort();
    #[cfg(feature = "cluster")]
    if let Some(election) = election {
        election.end().await;
    }
    admin.abort();
    #[cfg(feature = "cluster")]
    if let Some(metrics) = metrics {
        metrics.abort();
        let _ = metrics.await;
    }
    // The admin routes hold the last sender of the preview queue. Without a sender, the worker ends when the queue is empty.
    let _ = admin.await;
    if !preview_worker.end(DRAIN_TIMEOUT).await {
        tracing::warn!("aborted the previews that did not end in time");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Opens the artifact cache, and returns the fetcher over it.
fn fetcher(config: &Config, leads: &Leads) -> anyhow::Result<Arc<Fetcher>> {
    let cache = open_cache(config.cache.as_ref(), config.state_dir.as_deref(), leads)?;
    let fetcher = Fetcher::new(config.sources.clone(), config.pull_secrets.clone(), cache)
        .with_verification(config.verification.clone(), config.trusted_root.clone());
    Ok(Arc::new(fetcher.with_proxies(config.proxies.clone())))
}

/// Returns the function that makes the preparer of policies, whose programs call the host capabilities of `HostContext`.
fn preparer_over(
    config: &Config,
    container: Container,
    budgets: Budgets,
    fetcher: Arc<Fetcher>,
) -> anyhow::Result<impl FnOnce(HostContext) -> Arc<Preparer> + use<>> {
    // Each instance holds a place, so no evaluation waits for an instance.
    let places = u32::try_from(budgets.places.limits().total).unwrap_or(u32::MAX);
    let engine = wasm::Engine::new(wasm::Config { memory_limit: config.memory_limit, concurrency: places })?;
    let compilers = Compilers::new(config.memory_limit, config.compile_memory, config.compile_timeout, container);
    let (compilers, cache) = (Arc::new(compilers), fetcher.cache().cloned());
    let (tenants, time_limits) = (tenant_settings(config), TimeLimits::from(config));
    Ok(move |host_context| {
        let modules = Modules::new(engine, cache.clone(), Arc::clone(&compilers));
        let host_context = Arc::new(host_context);
        let constraints = Arc::default();
        let preparer =
            Preparer { modules, fetcher, host_context, compilers, cache, budgets, time_limits, tenants, constraints };
        Arc::new(preparer)
    })
}

/// Returns the settings of namespaced policies. Without a cluster, all policies have the same author: then `None`.
fn tenant_settings(config: &Config) -> Option<TenantSettings> {
    match &config.source {
        Source::Cluster(replica) => Some(TenantSettings {
            server: replica.policy_server.clone(),
            file: config.tenants.clone(),
            includes_system_requests: config.namespaced_system_requests,
        }),
        Source::Folder(_) => None,
    }
}

/// Starts a task that serves the admin port.
fn serve_admin(listener: TcpListener, routes: axum::Router) -> JoinHandle<()> {
    let routes = TowerToHyperService::new(routes);
    let serving = proviso_http::serve(listener, None, Limits::small(), routes, pending(), Duration::ZERO);
    proviso_tasks::spawn("admin port", serving)
}

/// The sockets of the server.
struct Listeners {
    reviews: TcpListener,
    admin: TcpListener,
    metrics: Option<TcpListener>,
}

impl Listeners {
    async fn bind(config: &Config) -> anyhow::Result<Self> {
        let reviews = bind("--listen", config.listen).await?;
        let admin = bind("--admin-listen", config.admin_listen).await?;
        let metrics = match config.metrics_listen {
            Some(address) => Some(bind("--metrics-listen", address).await?),
            None => None,
        };
        Ok(Self { reviews, admin, metrics })
    }

    /// Logs the addresses.
    fn log(&self, policies: &str, scheme: &str) -> std::io::Result<()> {
        let metrics = self.metrics.as_ref().map(TcpListener::local_addr).transpose()?;
        tracing::info!(
            policies,
            listen = format!("{scheme}://{}", self.reviews.local_addr()?),
            admin = format!("http://{}", self.admin.local_addr()?),
            metrics = metrics.map(|address| format!("https://{address}")),
            "policy server started"
        );
        Ok(())
    }
}

/// Serves metrics and details to callers that may read them. Returns the task.
#[cfg(feature = "cluster")]
async fn serve_metrics(
    listener: TcpListener,
    certificate: Arc<Certificate>,
    server: Arc<Server>,
) -> anyhow::Result<JoinHandle<()>> {
    let client = cluster::client().await.context("--metrics-listen")?;
    let access = MetricsAccess::new(client.clone(), Tokens::new(client));
    let routes = admin::details_router(server).layer(from_fn_with_state(access, MetricsAccess::require));
    let tls = Some(certificate.acceptor()?);
    let routes = TowerToHyperService::new(routes);
    let serving = proviso_http::serve(listener, tls, Limits::small(), routes, pending(), Duration::ZERO);
    Ok(proviso_tasks::spawn("metrics port", serving))
}

/// Answers reviews, and calls of the REST API, until the shutdown.
async fn serve_requests(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    server: Arc<Server>,
    api: Option<Api>,
    phase: watch::Receiver<Phase>,
) {
    // 30 s is the longest evaluation timeout that a policy can set.
    let drain_timeout = Duration::from_secs(30) + DRAIN_TIMEOUT;
    let limits = Arc::clone(&server.limits);
    let answers = service_fn(move |request| {
        // Most requests are reviews: do not clone the API for them.
        let api = api.as_ref().filter(|api| api.has_path(request.method(), request.uri().path())).cloned();
        let server = Arc::clone(&server);
        async move {
            match api {
                Some(api) => Ok(api.answer(request, &server.phase).await),
                None => routes::answer(server, request).await,
            }
        }
    });
    proviso_http::serve(listener, tls, limits, answers, shutdown::draining(phase), drain_timeout).await;
}

/// Returns true while this replica leads. Not set before the replica joins the election.
type Leads = Arc<OnceLock<Box<dyn Fn() -> bool + Send + Sync>>>;

/// Opens the artifact cache: the shared cache of the replicas, which only the leader signs for, or the state folder. Returns `None` if
/// neither is configured.
fn open_cache(shared: Option<&SharedCache>, state: Option<&Path>, leads: &Leads) -> anyhow::Result<Option<Volume>> {
    let cache = match shared {
        Some(shared) => {
            let leads = Arc::clone(leads);
            Some(open_shared_cache(shared)?.signing_while(move || leads.get().is_some_and(|leads| leads())))
        }
        None => state.map(Cache::open).transpose().context("--state-dir")?,
    };
    Ok(cache.map(Volume::new))
}

/// Opens the cache that all replicas share. Unreadable signing keys are a wrong configuration and fail the start. An unreadable
/// folder does not: it may come back, and until then each replica compiles its modules itself.
fn open_shared_cache(shared: &SharedCache) -> anyhow::Result<Cache> {
    let keys = SigningKeys::mounted(&shared.signing_key)
        .with_context(|| format!("--signing-key {}", shared.signing_key.display()))?;
    Ok(Cache::open_shared(&shared.folder, keys))
}

async fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {flag} {address}: the port may be in use; choose another one with {flag}")
    })
}
