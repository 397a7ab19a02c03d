//! Fetches modules from registries and over HTTPS, within limits of size and time and from allowed addresses only, and
//! checks what came (docs/adr/0006).

mod address;
mod blocking;
mod challenge;
mod client;
mod connection;
mod credentials;
mod error;
mod image;
mod mirrors;
mod proxy;
mod push;
mod registry;
mod room;
mod signatures;
mod sources;
mod verification;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use url::Url;

pub use credentials::{PullSecretError, PullSecrets};
pub use error::{ConnectError, FetchError};
pub use image::Manifest;
pub use proxy::{Proxies, ProxyError};
pub use push::PushError;
pub(crate) use room::Room;
pub use sources::{Sources, SourcesError};

use crate::digest::Digest;
use crate::module::{MAX_MODULE, Module};
use crate::reference::{Host, ModuleReference};
use crate::volume::Volume;
use blocking::blocking;
use client::Client;
use connection::Trust;
use room::Rooms;
use verification::Verifying;

/// How long one module may take, everything included.
const DEADLINE: Duration = Duration::from_mins(1);

/// Fetches modules. Its files are read at each fetch: they may change while it lives.
#[derive(Debug)]
pub struct Fetcher {
    sources: Option<PathBuf>,
    pull_secrets: Option<PathBuf>,
    volume: Option<Volume>,
    deadline: Duration,
    rooms: Rooms,
    proxies: Proxies,
    verifying: Verifying,
}

/// Which module is asked for, beside its reference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// What the policy says that the module's bytes have.
    pub digest: Option<Digest>,
    /// What they had when this generation of the policy was prepared first.
    pub pin: Option<Digest>,
    /// The Secrets whose credentials may be used; none named means any.
    pub pull_secrets: &'a [String],
}

impl Fetcher {
    /// One that knows the servers in the file `sources`, has the credentials in the folder `pull_secrets` (one folder
    /// for each Secret), and looks for modules in a cache before it asks anybody.
    #[must_use]
    pub fn new(sources: Option<PathBuf>, pull_secrets: Option<PathBuf>, cache: Option<Volume>) -> Self {
        Self {
            sources,
            pull_secrets,
            volume: cache,
            deadline: DEADLINE,
            rooms: Rooms::new(MAX_MODULE),
            proxies: Proxies::default(),
            verifying: Verifying::default(),
        }
    }

    /// One that reaches servers through these proxies.
    #[must_use]
    pub fn through(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// With another limit for the time of a fetch than a minute.
    #[must_use]
    pub fn within(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Fetches a module and checks it.
    ///
    /// # Errors
    /// When it cannot be had, or has another digest than was asked for.
    pub async fn fetch(&self, reference: &ModuleReference, wanted: Wanted<'_>) -> Result<Module, FetchError> {
        if let (Some(pin), Some(digest)) = (wanted.pin, wanted.digest)
            && pin != digest
        {
            return Err(FetchError::Digest { actual: pin, wanted: digest });
        }
        let checks = self.checks().await?;
        if checks.is_some() && !matches!(reference, ModuleReference::Registry(_)) {
            return Err(FetchError::Unverifiable(reference.to_string()));
        }
        if let Some(pin) = wanted.pin
            && self.is_verified(checks.as_ref(), pin).await
            && let Some(module) = self.cached(pin).await
        {
            return Ok(module);
        }
        let fetching = Box::pin(async {
            match reference {
                ModuleReference::File(path) => {
                    let path = path.clone();
                    blocking(move || Module::read(&path)).await?.expect(wanted.pin.or(wanted.digest).as_ref())
                }
                ModuleReference::Registry(artifact) => {
                    let (wanted, checks) = (&wanted, checks.as_ref());
                    let pull = |mut client, place| async move { self.pull(&mut client, &place, wanted, checks).await };
                    self.ask(artifact, wanted.pull_secrets, pull).await
                }
                ModuleReference::Https(url) => {
                    let (trust, secrets) = self.load(wanted.pull_secrets).await?;
                    let path = url.path().trim_start_matches('/');
                    let credential = Host::of(url).and_then(|host| secrets.find(&host, path).cloned());
                    self.download(Client::new(trust, credential, false), url, &wanted).await
                }
            }
        });
        self.in_time(&reference.to_string(), fetching).await
    }

    async fn in_time<T>(
        &self,
        what: &str,
        fetching: impl Future<Output = Result<T, FetchError>>,
    ) -> Result<T, FetchError> {
        let timeout = || FetchError::Timeout { what: what.to_owned(), limit: self.deadline };
        tokio::time::timeout(self.deadline, fetching).await.unwrap_or_else(|_| Err(timeout()))
    }

    /// Fetches the module of a page.
    async fn download(&self, mut client: Client, url: &Url, wanted: &Wanted<'_>) -> Result<Module, FetchError> {
        let answer = client.get(url, "application/wasm, */*").await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Err(FetchError::NotFound { reference: url.to_string(), may_come: true });
        }
        let module = client.ok(answer)?.read_module(&self.rooms).await?.expect(wanted.digest.as_ref())?;
        match wanted.pin {
            Some(pinned) if pinned != module.digest => {
                Err(FetchError::Moved { reference: url.to_string(), pinned, now: module.digest })
            }
            _ => Ok(module),
        }
    }

    /// The module of this digest, if the cache has it. What is wrong with the cache does not matter: there are the
    /// servers.
    async fn cached(&self, digest: Digest) -> Option<Module> {
        let read = self.volume.as_ref()?.run(move |cache| cache.module(&digest)).await;
        read.inspect_err(|error| tracing::warn!(module = %digest, reason = error.reason().as_str(), %error, "module not taken from the cache"))
            .ok()?
            .map(|bytes| Module::new(digest, bytes))
    }

    /// Reads who is trusted, and the credentials that may be used.
    async fn load(&self, names: &[String]) -> Result<(Arc<Trust>, PullSecrets), FetchError> {
        let (sources, folder, names) = (self.sources.clone(), self.pull_secrets.clone(), names.to_vec());
        let proxies = self.proxies.clone();
        blocking(move || {
            let sources = sources.as_deref().map(read_sources).transpose()?.unwrap_or_default();
            Ok((Trust::load(sources, proxies).into(), PullSecrets::read(folder.as_deref(), &names)?))
        })
        .await
    }
}

fn read_sources(path: &Path) -> Result<Sources, FetchError> {
    Sources::read(path).map_err(|error| FetchError::Sources { path: path.to_owned(), error })
}
