//! Fetches modules from registries and over HTTPS, with limits of size and time and from allowed addresses only, and checks
//! their digests and signatures (docs/adr/0006).

mod access;
mod address;
mod blocking;
mod challenge;
mod client;
mod connection;
mod credentials;
mod error;
mod image;
mod memory;
mod mirrors;
mod proxy;
mod push;
mod registry;
mod signatures;
mod sources;
mod verification;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use url::Url;

pub use access::{FetchAccess, TenantLimits};
pub use credentials::{PullSecretError, PullSecrets};
pub use error::{ConnectError, FetchError};
pub use image::Manifest;
pub(crate) use memory::MemoryPermit;
pub use proxy::{Proxies, ProxyError};
pub use push::PushError;
pub use sources::{Sources, SourcesError};

use crate::digest::Digest;
use crate::module::{MAX_MODULE, Module};
use crate::reference::{Host, ModuleReference};
use crate::verify::Checks;
use crate::volume::Volume;
use blocking::blocking;
use client::Client;
use connection::Trust;
use memory::MemoryBudget;
use verification::VerificationState;

/// The default time limit for one fetch, with redirects, mirrors and signatures.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);

/// A client that fetches modules. Each fetch reads the configuration files again, because they may change.
#[derive(Debug)]
pub struct Fetcher {
    sources: Option<PathBuf>,
    pull_secrets: Option<PathBuf>,
    volume: Option<Volume>,
    timeout: Duration,
    memory: MemoryBudget,
    proxies: Proxies,
    verification: VerificationState,
}

/// The options of a fetch: expected digests and credentials.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchOptions<'a> {
    /// The digest of the module that the policy requires; `None` if the policy requires none.
    pub digest: Option<Digest>,
    /// The digest of the module when this generation of the policy was prepared first; `None` before that.
    pub pin: Option<Digest>,
    /// The names of the Secrets whose credentials may be used; empty means all Secrets.
    pub pull_secrets: &'a [String],
    /// The limits of a namespaced policy; `None` if there are none.
    pub tenant: Option<&'a TenantLimits>,
}

impl<'a> FetchOptions<'a> {
    fn access(&self) -> FetchAccess<'a> {
        FetchAccess { pull_secrets: self.pull_secrets, tenant: self.tenant }
    }
}

impl Fetcher {
    /// Creates a fetcher.
    ///
    /// `sources` is the file with the settings of servers, and `pull_secrets` the folder with one folder per Secret. The
    /// fetcher looks for a module in `cache` before it asks a server.
    #[must_use]
    pub fn new(sources: Option<PathBuf>, pull_secrets: Option<PathBuf>, cache: Option<Volume>) -> Self {
        Self {
            sources,
            pull_secrets,
            volume: cache,
            timeout: DEFAULT_TIMEOUT,
            memory: MemoryBudget::new(MAX_MODULE),
            proxies: Proxies::default(),
            verification: VerificationState::default(),
        }
    }

    /// Returns this fetcher with proxies.
    #[must_use]
    pub fn with_proxies(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// Returns this fetcher with another time limit for one fetch. The default is one minute.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the cache that the fetcher looks in; `None` if it has none.
    #[must_use]
    pub fn cache(&self) -> Option<&Volume> {
        self.volume.as_ref()
    }

    /// Fetches a module, and checks its digest and its signatures.
    ///
    /// # Errors
    /// Returns an error if no server or cache returns the module, the digest differs from `wanted`, or a required signature
    /// is missing.
    pub async fn fetch(&self, reference: &ModuleReference, wanted: FetchOptions<'_>) -> Result<Module, FetchError> {
        match self.fetch_cached(reference, wanted).await? {
            Some(module) => Ok(module),
            None => self.fetch_uncached(reference, wanted).await,
        }
    }

    /// Returns the pinned module from the cache, as [`Self::fetch`] does; `None` if it is not pinned, not verified, or not in the
    /// cache.
    ///
    /// # Errors
    /// Returns an error if the pin differs from the digest of `wanted`, or the module needs signatures and cannot have them.
    pub async fn fetch_cached(
        &self,
        reference: &ModuleReference,
        wanted: FetchOptions<'_>,
    ) -> Result<Option<Module>, FetchError> {
        let checks = self.checks_of(reference, &wanted).await?;
        let Some(pin) = wanted.pin else { return Ok(None) };
        Ok(if self.is_verified(checks.as_ref(), pin).await { self.cached(pin).await } else { None })
    }

    /// Fetches a module from its server or file, as [`Self::fetch`] does after it has not found the module in the cache.
    ///
    /// # Errors
    /// Returns the errors of [`Self::fetch`].
    pub async fn fetch_uncached(
        &self,
        reference: &ModuleReference,
        wanted: FetchOptions<'_>,
    ) -> Result<Module, FetchError> {
        let checks = self.checks_of(reference, &wanted).await?;
        let fetching = Box::pin(async {
            match reference {
                ModuleReference::File(path) => {
                    let path = path.clone();
                    blocking(move || Module::read(&path)).await?.expect(wanted.pin.or(wanted.digest).as_ref())
                }
                ModuleReference::Registry(artifact) => {
                    let (wanted, checks) = (&wanted, checks.as_ref());
                    let pull =
                        |mut client, location| async move { self.pull(&mut client, &location, wanted, checks).await };
                    self.try_locations(artifact, wanted.access(), pull).await
                }
                ModuleReference::Https(url) => {
                    let (trust, secrets) = self.load(wanted.access()).await?;
                    let path = url.path().trim_start_matches('/');
                    let credential = Host::of(url).and_then(|host| secrets.find(&host, path).cloned());
                    self.download(Client::new(trust, credential, false), url, &wanted).await
                }
            }
        });
        self.limit_time(&reference.to_string(), fetching).await
    }

    /// Returns the verification requirements of a module; `None` if it needs no signatures.
    async fn checks_of(
        &self,
        reference: &ModuleReference,
        wanted: &FetchOptions<'_>,
    ) -> Result<Option<Arc<Checks>>, FetchError> {
        if let (Some(pin), Some(digest)) = (wanted.pin, wanted.digest)
            && pin != digest
        {
            return Err(FetchError::Digest { actual: pin, wanted: digest });
        }
        let checks = self.checks().await?;
        if checks.is_some() && !matches!(reference, ModuleReference::Registry(_)) {
            return Err(FetchError::Unverifiable(reference.to_string()));
        }
        Ok(checks)
    }

    /// Limits the time of a fetch. `what` names the fetched object in the error.
    async fn limit_time<T>(
        &self,
        what: &str,
        fetching: impl Future<Output = Result<T, FetchError>>,
    ) -> Result<T, FetchError> {
        let timeout = || FetchError::Timeout { what: what.to_owned(), limit: self.timeout };
        tokio::time::timeout(self.timeout, fetching).await.unwrap_or_else(|_| Err(timeout()))
    }

    /// Fetches a module from a URL.
    async fn download(&self, mut client: Client, url: &Url, wanted: &FetchOptions<'_>) -> Result<Module, FetchError> {
        let answer = client.get(url, "application/wasm, */*").await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Err(FetchError::NotFound { reference: url.to_string(), may_appear: true });
        }
        let module = client.ok(answer)?.read_module(&self.memory).await?.expect(wanted.digest.as_ref())?;
        match wanted.pin {
            Some(pinned) if pinned != module.digest => {
                Err(FetchError::Moved { reference: url.to_string(), pinned, now: module.digest })
            }
            _ => Ok(module),
        }
    }

    /// Returns the module with this digest from the cache; `None` if the cache does not have it. An error of the cache is
    /// logged and counts as `None`, because a server can return the module.
    async fn cached(&self, digest: Digest) -> Option<Module> {
        let read = self.volume.as_ref()?.run(move |cache| cache.module(&digest)).await;
        read.inspect_err(|error| tracing::warn!(module = %digest, reason = error.reason().as_str(), %error, "the module cannot be read from the cache"))
            .ok()?
            .map(|bytes| Module::new(digest, bytes))
    }

    /// Reads the trusted servers and authorities, and the credentials of the permitted Secrets.
    async fn load(&self, access: FetchAccess<'_>) -> Result<(Arc<Trust>, PullSecrets), FetchError> {
        let (sources, folder, names) = (self.sources.clone(), self.pull_secrets.clone(), access.secrets());
        let (proxies, tenant) = (self.proxies.clone(), access.tenant.cloned());
        blocking(move || {
            let sources = sources.as_deref().map(read_sources).transpose()?.unwrap_or_default();
            let secrets = match names {
                Some(names) if names.is_empty() => PullSecrets::default(),
                names => PullSecrets::read(folder.as_deref(), &names.unwrap_or_default())?,
            };
            Ok((Trust::load(sources, proxies, tenant).into(), secrets))
        })
        .await
    }
}

fn read_sources(path: &Path) -> Result<Sources, FetchError> {
    Sources::read(path).map_err(|error| FetchError::Sources { path: path.to_owned(), error })
}
