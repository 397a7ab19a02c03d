//! When a fetched module has to be verified, and what of that is remembered: a restart needs no registry, and other
//! settings are measured anew.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::client::Client;
use super::error::FetchError;
use super::{Fetcher, blocking, registry, signatures};
use crate::cache::Verified;
use crate::digest::Digest;
use crate::reference::Artifact;
use crate::verify::{Checks, ConfigurationError, Requirement, TrustRoot};

/// Verifications at the same time: each computes, and goes on when nobody waits for it any more.
const VERIFICATIONS: usize = 4;

/// Where it stands what signatures modules need, and who vouches for identities.
#[derive(Debug)]
pub(super) struct Verifying {
    pub verification: Option<PathBuf>,
    pub root: Option<PathBuf>,
    /// What was verified here, by the digest of the module.
    known: Mutex<HashMap<Digest, Verified>>,
    places: Arc<Semaphore>,
}

impl Default for Verifying {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(VERIFICATIONS));
        Self { verification: None, root: None, known: Mutex::default(), places }
    }
}

impl Verifying {
    /// Computes where it holds up nobody, once there is a place.
    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, FetchError> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|closed| FetchError::Stopped(closed.to_string()))?;
        let computing = move || {
            let _place = place;
            Ok(work())
        };
        blocking(computing).await
    }
}

impl Fetcher {
    /// One that takes only modules with the signatures that the file `verification` wants. Without a trusted root only
    /// those made with keys can be verified. Both are read again at each fetch.
    #[must_use]
    pub fn verifying(self, verification: Option<PathBuf>, trusted_root: Option<PathBuf>) -> Self {
        Self { verifying: Verifying { verification, root: trusted_root, ..Verifying::default() }, ..self }
    }

    /// Whether modules need signatures. What is no artifact of a registry has none.
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.verifying.verification.is_some()
    }

    /// Whether the module of this digest may be used as it is: nothing is wanted, or it was verified against what is
    /// wanted now.
    ///
    /// # Errors
    /// When it cannot be told what is wanted.
    pub async fn is_trusted(&self, module: Digest) -> Result<bool, FetchError> {
        let checks = self.checks().await?;
        Ok(self.is_verified(checks.as_ref(), module).await)
    }

    /// The digest of an image that has each of these signatures. It is the one to use: a tag may mean another one by
    /// then. `pull_secrets` are the Secrets whose credentials may be used; none named means any.
    ///
    /// # Errors
    /// When it cannot be had, or a signature is missing.
    pub async fn verify(
        &self,
        image: &Artifact,
        requirements: Vec<Requirement>,
        pull_secrets: &[String],
    ) -> Result<Digest, FetchError> {
        let verifying = Box::pin(async {
            let root = self.verifying.root.clone();
            let root = blocking(move || root.as_deref().map(TrustRoot::read).transpose().map_err(unusable)).await?;
            let checks = &Arc::new(Checks::all_of(requirements, root));
            let check = |mut client, place| async move {
                let digest = registry::digest(&mut client, &place).await?;
                self.check(&mut client, &place, digest, checks).await.map(|()| digest)
            };
            self.ask(image, pull_secrets, check).await
        });
        self.in_time(&image.to_string(), verifying).await
    }

    /// What modules have to stand now; none if nothing is wanted of them.
    pub(super) async fn checks(&self) -> Result<Option<Arc<Checks>>, FetchError> {
        let Some(verification) = self.verifying.verification.clone() else { return Ok(None) };
        let root = self.verifying.root.clone();
        blocking(move || {
            Checks::load(&verification, root.as_deref()).map(|checks| Some(checks.into())).map_err(unusable)
        })
        .await
    }

    /// Whether this module needs no more checks.
    pub(super) async fn is_verified(&self, checks: Option<&Arc<Checks>>, module: Digest) -> bool {
        let Some(checks) = checks else { return true };
        self.verified(module).await.is_some_and(|verified| verified.against == checks.fingerprint)
    }

    /// What this module was last verified against.
    pub(super) async fn verified(&self, module: Digest) -> Option<Verified> {
        if let Some(known) = self.verifying.known.lock().unwrap_or_else(PoisonError::into_inner).get(&module) {
            return Some(*known);
        }
        let read = self.volume.as_ref()?.run(move |cache| cache.verified(&module)).await;
        read.inspect_err(
            |error| tracing::warn!(%module, reason = error.reason(), %error, "what was verified is not known any more"),
        )
        .ok()?
    }

    /// Checks the signatures of the artifact with this manifest.
    pub(super) async fn check(
        &self,
        client: &mut Client,
        artifact: &Artifact,
        manifest: Digest,
        checks: &Arc<Checks>,
    ) -> Result<(), FetchError> {
        let found = signatures::find(client, artifact, manifest).await?;
        let (checks, name) = (Arc::clone(checks), artifact.to_string());
        let verified = self.verifying.compute(move || checks.verify(&name, manifest, &found)).await?;
        verified
            .inspect(|()| tracing::info!(artifact = %artifact, %manifest, "signatures verified"))
            .map_err(|error| FetchError::Unverified(error.into()))
    }

    /// Remembers that a module was verified. What cannot be kept is verified again.
    pub(super) async fn remember(&self, module: Digest, verified: Verified) {
        self.verifying.known.lock().unwrap_or_else(PoisonError::into_inner).insert(module, verified);
        let Some(volume) = &self.volume else { return };
        if let Err(error) = volume.run(move |cache| cache.put_verified(&module, verified)).await {
            tracing::warn!(%module, reason = error.reason(), %error, "what was verified is not kept");
        }
    }
}

fn unusable(error: impl Into<ConfigurationError>) -> FetchError {
    FetchError::Verification(Box::new(error.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// The runtime has this thread only: what computed on it would keep the test from going on.
    #[tokio::test]
    async fn verifications_hold_up_nobody_and_only_so_many_run_at_once() {
        let verifying = Arc::new(Verifying::default());
        let (begun, beginnings) = mpsc::channel();
        let verify = |release: mpsc::Receiver<()>| {
            let (verifying, begun) = (Arc::clone(&verifying), begun.clone());
            let computing = move || {
                begun.send(()).unwrap();
                release.recv().is_err()
            };
            tokio::spawn(async move { verifying.compute(computing).await.unwrap() })
        };
        let (releases, running): (Vec<_>, Vec<_>) = (0..VERIFICATIONS)
            .map(|_| {
                let (release, released) = mpsc::channel::<()>();
                (release, verify(released))
            })
            .unzip();
        while verifying.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..VERIFICATIONS {
            beginnings.recv_timeout(Duration::from_mins(1)).unwrap();
        }
        let last = {
            let (_, at_once) = mpsc::channel::<()>();
            verify(at_once)
        };
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(beginnings.try_recv().is_err(), "there is no place for one more");
        // Nobody waits for one that goes on all the same, and keeps its place.
        let mut running = running.into_iter();
        running.next().unwrap().abort();
        tokio::task::yield_now().await;
        assert_eq!(verifying.places.available_permits(), 0);
        drop(releases);
        assert!(last.await.unwrap());
        for verification in running {
            assert!(verification.await.unwrap());
        }
    }
}
