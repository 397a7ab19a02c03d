//! The policy server: loads, serves and previews policies, over a folder of manifests or as a replica in a cluster.

#![cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "some functions serve replicas in a cluster only"))]

mod admin;
mod api;
#[cfg(feature = "cluster")]
mod cluster;
mod compile;
mod config;
mod decide;
mod denial_log;
mod folder;
mod lifecycle;
mod logging;
mod manifests;
mod metrics;
mod modules;
mod notify_on_drop;
mod preview;
mod routes;
mod start;
mod state;
mod table;
mod tls;

use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::service::TowerToHyperService;
use proviso_artifacts::{Cache, Fetcher, SigningKeys, Volume};
use proviso_capabilities::{FolderObjects, HostContext, Images};
use proviso_engines::wasm;
use proviso_http::shutdown::{self, Phase};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::api::{Access, Api};
use crate::compile::Compilers;
use crate::config::{Config, SharedCache, Source};
use crate::folder::FolderSource;
use crate::lifecycle::prepare::Preparer;
use crate::metrics::Metrics;
use crate::modules::Modules;
use crate::preview::PreviewQueue;
use crate::routes::{BODY_MEMORY_KIB, Server};
use crate::state::StateFile;
use crate::table::SharedTable;

pub use crate::start::main;

/// The time that requests have to finish at shutdown, in addition to the longest evaluation. Queued previews have the same time
/// after the requests.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the server until it receives SIGTERM or SIGINT.
async fn run(config: Config) -> anyhow::Result<()> {
    let phase = shutdown::listen(config.shutdown_delay).context("cannot listen for signals")?;
    let metrics = Arc::new(Metrics::new());
    let listener = bind("--listen", config.listen).await?;
    let admin_listener = bind("--admin-listen", config.admin_listen).await?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let tls = config.tls.map(|files| tls::acceptor(files, Arc::clone(&metrics))).transpose()?;

    let _lock = config.state_dir.as_deref().map(state::lock).transpose().context("--state-dir")?;
    let cache = open_cache(config.cache.as_ref(), config.state_dir.as_deref())?;
    let engine =
        wasm::Engine::new(wasm::Config { memory_limit: config.memory_limit, concurrency: config.concurrency })?;
    let compilers = Arc::new(Compilers::new(config.memory_limit, config.compile_memory, config.compile_timeout));
    let fetcher = Fetcher::new(config.sources, config.pull_secrets, cache.clone())
        .with_verification(config.verification, config.trusted_root)
        .with_proxies(config.proxies);
    let fetcher = Arc::new(fetcher);
    let preparer_over = |host_context: HostContext| {
        Arc::new(Preparer {
            modules: Modules::new(engine, cache.clone(), Arc::clone(&compilers)),
            fetcher: Arc::clone(&fetcher),
            host_context: Arc::new(host_context),
            compilers,
            cache,
            evaluation_timeout: config.evaluation_timeout,
        })
    };
    let images = Images::new(Arc::clone(&fetcher));
    let table = Arc::<SharedTable>::default();
    let policies = config.source.to_string();
    #[cfg(feature = "cluster")]
    let mut election = None;
    let mut api = None;
    let source_task: BoxFuture<'static, ()> = match config.source {
        Source::Folder(path) => {
            let state = config.state_dir.as_deref().map(StateFile::in_folder);
            let objects = Arc::<FolderObjects>::default();
            let preparer = preparer_over(HostContext::folder(Arc::clone(&objects), images));
            let source = FolderSource::new(preparer, Arc::clone(&table), Arc::clone(&metrics), state, objects)?;
            let (handle, task) = source.follow(path);
            api = Access::new(config.listen.ip(), config.api_token_file)?.map(|access| Api::new(handle, access));
            Box::pin(task)
        }
        #[cfg(feature = "cluster")]
        Source::Cluster(replica) => {
            let prepare = |objects| preparer_over(HostContext::cluster(objects, images));
            let (table, metrics) = (Arc::clone(&table), Arc::clone(&metrics));
            let (joined, task) = cluster::join(replica, config.context_memory, prepare, table, metrics).await?;
            election = Some(joined);
            task
        }
        #[cfg(not(feature = "cluster"))]
        Source::Cluster(_) => anyhow::bail!(
            "--policy-server: this program was built without the feature `cluster`; build it with \
             `cargo build -p policy-server`, or serve a folder with --manifests"
        ),
    };

    let (previews, preview_worker) =
        PreviewQueue::start(config.preview_queue, config.concurrency, config.preview_priority)
            .context("the preview worker cannot be started")?;
    let body_memory = Semaphore::new(BODY_MEMORY_KIB);
    let server = Arc::new(Server { body_memory, table, metrics, previews, phase: phase.clone() });
    tracing::info!(
        policies,
        listen = format!("{scheme}://{}", listener.local_addr()?),
        admin = format!("http://{}", admin_listener.local_addr()?),
        "policy server started"
    );
    let source_task = proviso_tasks::spawn("policies", source_task);
    // The admin port answers until the last request is answered: probes must see that the server shuts down.
    let admin = proviso_http::serve(
        admin_listener,
        None,
        TowerToHyperService::new(admin::router(Arc::clone(&server))),
        pending(),
        Duration::ZERO,
    );
    let admin = proviso_tasks::spawn("admin port", admin);
    serve_requests(listener, tls, server, api, phase).await;
    source_task.abort();
    #[cfg(feature = "cluster")]
    if let Some(election) = election {
        election.end().await;
    }
    admin.abort();
    // The admin routes hold the last sender of the preview queue. Without a sender, the worker ends when the queue is empty.
    let _ = admin.await;
    if !preview_worker.end(DRAIN_TIMEOUT).await {
        tracing::warn!("aborted the previews that did not end in time");
    }
    tracing::info!("stopped");
    Ok(())
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
    let answers = service_fn(move |request| {
        // Most requests are reviews: do not clone the API for them.
        let api = api.as_ref().filter(|_| Api::has_path(request.uri().path())).cloned();
        let server = Arc::clone(&server);
        async move {
            match api {
                Some(api) => Ok(api.answer(request, &server.phase).await),
                None => routes::answer(server, request).await,
            }
        }
    });
    proviso_http::serve(listener, tls, answers, shutdown::draining(phase), drain_timeout).await;
}

/// Opens the artifact cache: the shared cache of the replicas, or the state folder. Returns `None` if neither is configured.
fn open_cache(shared: Option<&SharedCache>, state: Option<&Path>) -> anyhow::Result<Option<Volume>> {
    let cache = match shared {
        Some(shared) => Some(open_shared_cache(shared)?),
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
