//! Whether a module was signed by whom it must be: what is wanted, and what the signatures beside it in the registry
//! prove. Nothing here asks a server: the signatures come from [`crate::fetch`], the roots of trust from a file
//! (docs/adr/0010).

mod bundle;
mod candidate;
mod certificate;
mod claims;
mod configuration;
mod error;
mod key;
mod legacy;
mod request;
mod requirement;
mod root;
mod signed;
mod subject;

pub use certificate::SigningCertificate;
pub use configuration::{ConfigurationError, Verification};
pub use error::VerifyError;
pub use key::{KeyError, PublicKey};
pub use request::{VerifyRequest, VerifyRequestError};
pub use requirement::{Requirement, Signer};
pub use root::{RootError, TrustRoot};
pub use subject::{Subject, UrlPrefix};

pub(crate) use candidate::Candidate;

use std::path::Path;

use crate::digest::Digest;

/// What is wanted, and what it is measured with.
#[derive(Debug)]
pub(crate) struct Checks {
    verification: Verification,
    root: Option<TrustRoot>,
    /// Tells these from all others: what was verified against them needs it no more, but against others anew.
    pub fingerprint: Digest,
}

impl Checks {
    /// With what is wanted from one file, and the root of trust from another. Blocks on the disk.
    pub(crate) fn load(verification: &Path, root: Option<&Path>) -> Result<Self, ConfigurationError> {
        let (verification, text) = Verification::read(verification)?;
        let root = root.map(TrustRoot::read).transpose()?;
        // Keys are trusted whatever the root is: a new one must not make their modules be verified anew.
        let digest = root.as_ref().filter(|_| verification.needs_root()).map(|root| root.digest);
        let fingerprint = Digest::of(format!("{text}\n{digest:?}").as_bytes());
        Ok(Self { verification, root, fingerprint })
    }

    /// With requirements that are all to be met.
    pub(crate) fn all_of(requirements: Vec<Requirement>, root: Option<TrustRoot>) -> Self {
        Self { verification: Verification::all_of(requirements), root, fingerprint: Digest::of(b"") }
    }

    /// Checks what was found beside an image of this digest.
    pub(crate) fn verify(&self, image: &str, manifest: Digest, found: &[Candidate]) -> Result<(), VerifyError> {
        let candidates: Vec<_> = found.iter().map(|found| found.examine(&manifest, self.root.as_ref())).collect();
        let is_met = |requirement: &&Requirement| candidates.iter().any(|candidate| requirement.is_met_by(candidate));
        let missing: Vec<_> =
            self.verification.all_of.iter().filter(|it| !is_met(it)).map(ToString::to_string).collect();
        let refuse = |wanted: String| VerifyError {
            image: format!("{image} ({manifest})"),
            wanted,
            found: candidates.iter().map(ToString::to_string).collect(),
            needs_root: self.root.is_none() && self.verification.needs_root(),
        };
        if !missing.is_empty() {
            return Err(refuse(missing.join("; and ")));
        }
        let Some(any_of) = &self.verification.any_of else { return Ok(()) };
        let met = Signer::count(any_of.requirements.iter().filter(is_met));
        if met >= any_of.minimum {
            return Ok(());
        }
        let wanted: Vec<_> = any_of.requirements.iter().map(ToString::to_string).collect();
        Err(refuse(format!("{} of: {}", any_of.minimum, wanted.join("; or "))))
    }
}
