//! Verification of fetched modules. The result is recorded, so that a restart needs no registry; a change of the settings
//! verifies the modules again.

mod state;

use std::path::PathBuf;
use std::sync::Arc;

use super::blocking::blocking;
use super::client::Client;
use super::error::FetchError;
use super::{FetchAccess, Fetcher, registry, signatures};
use crate::cache::VerificationRecord;
use crate::digest::Digest;
use crate::reference::Artifact;
use crate::verify::{Checks, ConfigurationError, Requirement, TrustRoot};

pub(super) use state::VerificationState;

impl Fetcher {
    /// Returns this fetcher with verification: modules need the signatures that the file `verification` requires.
    ///
    /// Without the file `trusted_root` only signatures with keys can be verified. Each fetch reads both files again.
    #[must_use]
    pub fn with_verification(self, verification: Option<PathBuf>, trusted_root: Option<PathBuf>) -> Self {
        Self { verification: VerificationState::new(verification, trusted_root), ..self }
    }

    /// Returns true if modules need signatures. Modules outside a registry have no signatures.
    #[must_use]
    pub fn requires_signatures(&self) -> bool {
        self.verification.settings.is_some()
    }

    /// Returns true if the module with this digest needs no verification: modules need no signatures, or the module was
    /// verified with the current settings.
    ///
    /// # Errors
    /// Returns [`FetchError::Verification`] if the settings or the trusted root cannot be read or are malformed.
    pub async fn is_trusted(&self, module: Digest) -> Result<bool, FetchError> {
        let checks = self.checks().await?;
        Ok(self.is_verified(checks.as_ref(), module).await)
    }

    /// Verifies that an image has each of the required signatures, and returns its digest.
    ///
    /// Callers must use the digest, because the tag may move.
    ///
    /// # Errors
    /// Returns [`FetchError::Unverified`] if a signature is missing, and another error if the image cannot be fetched.
    pub async fn verify(
        &self,
        image: &Artifact,
        requirements: Vec<Requirement>,
        access: FetchAccess<'_>,
    ) -> Result<Digest, FetchError> {
        let verifying = Box::pin(async {
            let root = self.verification.trusted_root.clone();
            let read = move || root.as_deref().map(TrustRoot::read).transpose().map_err(configuration_error);
            let root = blocking(read).await?;
            let checks = &Arc::new(Checks::all_of(requirements, root));
            let check = |mut client, location| async move {
                let digest = registry::digest(&mut client, &location).await?;
                self.check(&mut client, &location, digest, checks).await.map(|()| digest)
            };
            self.try_locations(image, access, check).await
        });
        self.limit_time(&image.to_string(), verifying).await
    }

    /// Returns the verification requirements in force; `None` if modules need no signatures.
    pub(super) async fn checks(&self) -> Result<Option<Arc<Checks>>, FetchError> {
        let Some(settings) = self.verification.settings.clone() else { return Ok(None) };
        let root = self.verification.trusted_root.clone();
        blocking(move || {
            Checks::load(&settings, root.as_deref()).map(|checks| Some(checks.into())).map_err(configuration_error)
        })
        .await
    }

    /// Returns true if the module needs no further verification.
    pub(super) async fn is_verified(&self, checks: Option<&Arc<Checks>>, module: Digest) -> bool {
        let Some(checks) = checks else { return true };
        self.verified(module).await.is_some_and(|verified| verified.against == checks.fingerprint)
    }

    /// Returns the last verification record of a module; `None` if there is none or it cannot be read.
    pub(super) async fn verified(&self, module: Digest) -> Option<VerificationRecord> {
        if let Some(known) = self.verification.known(&module) {
            return Some(known);
        }
        let read = self.volume.as_ref()?.run(move |cache| cache.verified(&module)).await;
        read.inspect_err(
            |error| tracing::warn!(%module, reason = error.reason().as_str(), %error, "the verification record of the module cannot be read"),
        )
        .ok()?
    }

    /// Fetches and checks the signatures of an artifact with this manifest.
    pub(super) async fn check(
        &self,
        client: &mut Client,
        artifact: &Artifact,
        manifest: Digest,
        checks: &Arc<Checks>,
    ) -> Result<(), FetchError> {
        let found = signatures::find(client, artifact, manifest).await?;
        let (checks, name) = (Arc::clone(checks), artifact.to_string());
        let verified = self.verification.compute(move || checks.verify(&name, manifest, &found)).await?;
        verified
            .inspect(|()| tracing::info!(artifact = %artifact, %manifest, "signatures verified"))
            .map_err(|error| FetchError::Unverified(error.into()))
    }

    /// Records that a module was verified. A module without a record is verified again after a restart.
    pub(super) async fn remember(&self, module: Digest, verified: VerificationRecord) {
        self.verification.remember(module, verified);
        let Some(volume) = &self.volume else { return };
        if let Err(error) = volume.run(move |cache| cache.put_verified(&module, verified)).await {
            tracing::warn!(%module, reason = error.reason().as_str(), %error, "the verification record of the module cannot be stored");
        }
    }
}

fn configuration_error(error: impl Into<ConfigurationError>) -> FetchError {
    FetchError::Verification(Box::new(error.into()))
}
