//! Signature verification: the required signatures of a module, and the verification of the signatures in its registry.
//!
//! This module sends no requests: [`crate::fetch`] fetches the signatures, and the trusted root comes from a file
//! (docs/adr/0010).

mod bundle;
mod certificate;
mod claims;
mod configuration;
mod error;
mod found_signature;
mod key;
mod legacy;
mod request;
mod requirement;
mod root;
mod signature;
mod subject;

pub use certificate::SigningCertificate;
pub use configuration::{ConfigurationError, Verification};
pub use error::VerifyError;
pub use key::{KeyError, PublicKey};
pub use request::{VerifyRequest, VerifyRequestError};
pub use requirement::{Requirement, Signer};
pub use root::{RootError, TrustRoot};
pub use subject::{Subject, UrlPrefix};

pub(crate) use found_signature::FoundSignature;

use std::path::Path;

use crate::digest::Digest;

/// The required signatures, and the trusted root to verify them with.
#[derive(Debug)]
pub(crate) struct Checks {
    verification: Verification,
    root: Option<TrustRoot>,
    /// The digest of the settings and the trusted root. A module that was verified with the same fingerprint needs no further
    /// verification.
    pub fingerprint: Digest,
}

impl Checks {
    /// Reads the required signatures from the file `verification`, and the trusted root from `root`. Blocks on the disk.
    pub(crate) fn load(verification: &Path, root: Option<&Path>) -> Result<Self, ConfigurationError> {
        let (verification, text) = Verification::read(verification)?;
        let root = root.map(TrustRoot::read).transpose()?;
        // Keys do not depend on the trusted root: a new root must not cause a new verification of their modules.
        let digest = root.as_ref().filter(|_| verification.needs_root()).map(|root| root.digest);
        let fingerprint = Digest::of(format!("{text}\n{digest:?}").as_bytes());
        Ok(Self { verification, root, fingerprint })
    }

    /// Creates checks that require each of `requirements`.
    pub(crate) fn all_of(requirements: Vec<Requirement>, root: Option<TrustRoot>) -> Self {
        Self { verification: Verification::all_of(requirements), root, fingerprint: Digest::of(b"") }
    }

    /// Checks the signatures `found` of an image with the digest `manifest`.
    pub(crate) fn verify(&self, image: &str, manifest: Digest, found: &[FoundSignature]) -> Result<(), VerifyError> {
        let examined: Vec<_> = found.iter().map(|found| found.examine(&manifest, self.root.as_ref())).collect();
        let is_met = |requirement: &&Requirement| examined.iter().any(|signature| requirement.is_met_by(signature));
        let missing: Vec<_> =
            self.verification.all_of.iter().filter(|it| !is_met(it)).map(ToString::to_string).collect();
        let refuse = |wanted: String| VerifyError {
            image: format!("{image} ({manifest})"),
            wanted,
            found: examined.iter().map(ToString::to_string).collect(),
            needs_root: self.root.is_none() && self.verification.needs_root(),
        };
        if !missing.is_empty() {
            return Err(refuse(missing.join("; and ")));
        }
        let Some(any_of) = &self.verification.any_of else { return Ok(()) };
        let met = Signer::count_distinct(any_of.requirements.iter().filter(is_met));
        if met >= any_of.minimum {
            return Ok(());
        }
        let wanted: Vec<_> = any_of.requirements.iter().map(ToString::to_string).collect();
        Err(refuse(format!("{} of: {}", any_of.minimum, wanted.join("; or "))))
    }
}
