//! The policy server: loads, serves and previews policies. Alone over a folder of manifests, or as a replica in a
//! cluster.

#![cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "some functions serve replicas in a cluster only"))]

mod admin;
mod after;
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
use proviso_capabilities::{FolderObjects, Images, World};
use proviso_engines::wasm;
use proviso_http::shutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::api::{Access, Api};
use crate::compile::Compilers;
use crate::config::{Config, SharedCache, Source};
use crate::folder::FolderSource;
use crate::lifecycle::prepare::Preparer;
use crate::metrics::Metrics;
use crate::modules::Modules;
use crate::preview::Previews;
use crate::routes::{BODIES_KIB, Server};
use crate::state::StateFile;
use crate::table::SharedTable;

pub use crate::start::main;

/// How long requests under way may take to end beyond an evaluation's own limit, and queued previews after them.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until a signal ends it.
async fn run(config: Config) -> anyhow::Result<()> {
    let phase = shutdown::listen(config.shutdown_delay).context("signals cannot be followed")?;
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
        .verifying(config.verification, config.trusted_root)
        .through(config.proxies);
    let fetcher = Arc::new(fetcher);
    let prepare_over = |world: World| {
        Arc::new(Preparer {
            modules: Modules::new(engine, cache.clone(), Arc::clone(&compilers)),
            fetcher: Arc::clone(&fetcher),
            world: Arc::new(world),
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
    let following: BoxFuture<'static, ()> = match config.source {
        Source::Folder(path) => {
            let state = config.state_dir.as_deref().map(StateFile::in_folder);
            let objects = Arc::<FolderObjects>::default();
            let preparer = prepare_over(World::folder(Arc::clone(&objects), images));
            let source = FolderSource::new(preparer, Arc::clone(&table), Arc::clone(&metrics), state, objects)?;
            let (desk, following) = source.follow(path);
            api = Access::new(config.listen.ip(), config.api_token_file)?.map(|access| Api::new(desk, access));
            Box::pin(following)
        }
        #[cfg(feature = "cluster")]
        Source::Cluster(replica) => {
            let prepare = |objects| prepare_over(World::cluster(objects, images));
            let (table, metrics) = (Arc::clone(&table), Arc::clone(&metrics));
            let (stood, follower) = cluster::join(replica, config.context_memory, prepare, table, metrics).await?;
            election = Some(stood);
            follower
        }
        #[cfg(not(feature = "cluster"))]
        Source::Cluster(_) => anyhow::bail!(
            "--policy-server: this program was built without the feature `cluster`; build it with \
             `cargo build -p policy-server`, or serve a folder with --manifests"
        ),
    };

    let (previews, previewing) = Previews::start(config.preview_queue, config.concurrency, config.preview_priority)
        .context("the preview worker cannot be started")?;
    let server =
        Arc::new(Server { bodies: Semaphore::new(BODIES_KIB), table, metrics, previews, phase: phase.clone() });
    tracing::info!(
        policies,
        listen = format!("{scheme}://{}", listener.local_addr()?),
        admin = format!("http://{}", admin_listener.local_addr()?),
        "policy server started"
    );
    let following = tokio::spawn(following);
    // The admin port answers until the last request has: a probe must see the way out.
    let admin = proviso_http::serve(
        admin_listener,
        None,
        TowerToHyperService::new(admin::router(Arc::clone(&server))),
        pending(),
        Duration::ZERO,
    );
    let admin = tokio::spawn(admin);
    // A policy may have a longer budget than the default; 30 s is the most it can ask for.
    let drain = Duration::from_secs(30) + DRAIN;
    let answers = service_fn(move |request| {
        // A review is the usual case: it must not pay for the API.
        let api = api.as_ref().filter(|_| Api::has(request.uri().path())).cloned();
        let server = Arc::clone(&server);
        async move {
            match api {
                Some(api) => Ok(api.answer(request, &server.phase).await),
                None => routes::answer(server, request).await,
            }
        }
    });
    proviso_http::serve(listener, tls, answers, shutdown::draining(phase), drain).await;
    following.abort();
    #[cfg(feature = "cluster")]
    if let Some(election) = election {
        election.end().await;
    }
    admin.abort();
    // The admin routes hold the last way into the preview queue: without it the worker ends once the queue is empty.
    let _ = admin.await;
    if tokio::time::timeout(DRAIN, previewing).await.is_err() {
        tracing::warn!("previews that did not end in time were cut off");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Where modules are kept, if anywhere: the replicas' own, or in the state folder.
fn open_cache(shared: Option<&SharedCache>, state: Option<&Path>) -> anyhow::Result<Option<Volume>> {
    let cache = match shared {
        Some(shared) => Some(open_shared(shared)?),
        None => state.map(Cache::open).transpose().context("--state-dir")?,
    };
    Ok(cache.map(Volume::new))
}

/// The cache of all replicas. Keys that cannot be read are a mistake of whoever started this; a folder that cannot be
/// may come back, and until then each replica compiles for itself.
fn open_shared(shared: &SharedCache) -> anyhow::Result<Cache> {
    let keys = SigningKeys::mounted(&shared.signing_key)
        .with_context(|| format!("--signing-key {}", shared.signing_key.display()))?;
    Ok(Cache::open_shared(&shared.folder, keys))
}

async fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("{flag} {address} cannot be listened on: is the port taken? choose another with {flag}")
    })
}
