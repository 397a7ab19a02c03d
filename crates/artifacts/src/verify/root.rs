//! The root of trust: the certificate authorities, transparency logs and timestamp authorities that vouch for who
//! signs without a key of their own. Sigstore's `trusted_root.json`, from a file and never from a server.

use std::fmt;
use std::path::{Path, PathBuf};

use sigstore_verify::trust_root::TrustedRoot;
use sigstore_verify::{VerificationPolicy, Verifier};

use crate::digest::Digest;

/// Who vouches for identities.
pub struct TrustRoot {
    pub(super) digest: Digest,
    pub(super) verifier: Verifier,
    /// Whether authorities have to show that they publish what they certify. One that has no such logs cannot.
    has_certificate_logs: bool,
}

/// A root of trust that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    #[error("the trusted root {path} cannot be read: {error}", path = path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("the trusted root {path} is not as it should be: {error}", path = path.display())]
    Malformed { path: PathBuf, error: String },
}

impl TrustRoot {
    /// Reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// When it cannot be read, or holds no root of trust.
    pub fn read(path: &Path) -> Result<Self, RootError> {
        let text = std::fs::read_to_string(path).map_err(|error| RootError::File { path: path.to_owned(), error })?;
        let malformed = |error: String| RootError::Malformed { path: path.to_owned(), error };
        let root = TrustedRoot::from_json(&text).map_err(|error| malformed(error.to_string()))?;
        if root.certificate_authorities.is_empty() || root.tlogs.is_empty() {
            return Err(malformed("it needs at least one of certificateAuthorities and one of tlogs".to_owned()));
        }
        let verifier = Verifier::new(&root).map_err(|error| malformed(error.to_string()))?;
        Ok(Self { digest: Digest::of(text.as_bytes()), verifier, has_certificate_logs: !root.ctlogs.is_empty() })
    }

    /// What a certificate has to stand: its authority, the time of the signature, the logs.
    pub(super) fn policy(&self) -> VerificationPolicy {
        let policy = VerificationPolicy::any_identity();
        if self.has_certificate_logs { policy } else { policy.skip_sct() }
    }
}

impl fmt::Debug for TrustRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustRoot").field("digest", &self.digest).finish_non_exhaustive()
    }
}
