//! The trusted root of keyless signing: certificate authorities, transparency logs and timestamp authorities. It is the
//! `trusted_root.json` of Sigstore, and always comes from a file, never from a server.

use std::fmt;
use std::path::{Path, PathBuf};

use sigstore_verify::trust_root::TrustedRoot;
use sigstore_verify::{VerificationPolicy, Verifier};

use crate::digest::Digest;

/// A trusted root, which verifies the certificates of keyless signatures.
pub struct TrustRoot {
    pub(super) digest: Digest,
    pub(super) verifier: Verifier,
    /// True if the root has certificate transparency logs. Certificates then need a signed certificate timestamp (SCT).
    has_certificate_logs: bool,
}

/// The error of a trusted root that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    #[error("the trusted root {path} cannot be read: {error}", path = path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("the trusted root {path} is malformed: {error}", path = path.display())]
    Malformed { path: PathBuf, error: String },
}

impl TrustRoot {
    /// Reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// Returns [`RootError::File`] if the file cannot be read, and [`RootError::Malformed`] if it is not a trusted root.
    pub fn read(path: &Path) -> Result<Self, RootError> {
        let text = std::fs::read_to_string(path).map_err(|error| RootError::File { path: path.to_owned(), error })?;
        let malformed = |error: String| RootError::Malformed { path: path.to_owned(), error };
        let root = TrustedRoot::from_json(&text).map_err(|error| malformed(error.to_string()))?;
        if root.certificate_authorities.is_empty() || root.tlogs.is_empty() {
            return Err(malformed("it needs at least one item in certificateAuthorities and one in tlogs".to_owned()));
        }
        let verifier = Verifier::new(&root).map_err(|error| malformed(error.to_string()))?;
        Ok(Self { digest: Digest::of(text.as_bytes()), verifier, has_certificate_logs: !root.ctlogs.is_empty() })
    }

    /// Returns the policy that certificates must satisfy: the CA, the time of the signature, and the logs.
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
