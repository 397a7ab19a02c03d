//! When a fetched module has to be verified, and what of that is remembered: a restart needs no registry, and other
//! settings are measured anew.

mod state;

use std::path::PathBuf;
use std::sync::Arc;

use super::blocking::blocking;
use super::client::Client;
use super::error::FetchError;
use super::{Fetcher, registry, signatures};
use crate::cache::Verified;
use crate::digest::Digest;
use crate::reference::Artifact;
use crate::verify::{Checks, ConfigurationError, Requirement, TrustRoot};

pub(super) use state::Verifying;

impl Fetcher {
    /// One that takes only modules with the signatures that the file `verification` wants. Without a trusted root only
    /// those made with keys can be verified. Both are read again at each fetch.
    #[must_use]
    pub fn verifying(self, verification: Option<PathBuf>, trusted_root: Option<PathBuf>) -> Self {
        Self { verifying: Verifying::new(verification, trusted_root), ..self }
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
        if let Some(known) = self.verifying.known(&module) {
            return Some(known);
        }
        let read = self.volume.as_ref()?.run(move |cache| cache.verified(&module)).await;
        read.inspect_err(
            |error| tracing::warn!(%module, reason = error.reason().as_str(), %error, "what was verified is not known any more"),
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
        self.verifying.remember(module, verified);
        let Some(volume) = &self.volume else { return };
        if let Err(error) = volume.run(move |cache| cache.put_verified(&module, verified)).await {
            tracing::warn!(%module, reason = error.reason().as_str(), %error, "what was verified is not kept");
        }
    }
}

fn unusable(error: impl Into<ConfigurationError>) -> FetchError {
    FetchError::Verification(Box::new(error.into()))
}
