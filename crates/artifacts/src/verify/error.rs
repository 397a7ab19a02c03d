//! Why an image is not trusted: what was wanted, and what was found instead.

use std::fmt;

/// An image whose signatures are not the ones that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// With its digest.
    pub image: String,
    /// Each requirement that is not met.
    pub wanted: String,
    /// Each signature that there is, and what is wrong with it.
    pub found: Vec<String>,
    /// Whether a root of trust may be all that is missing.
    pub needs_root: bool,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, wanted, found, needs_root } = self;
        write!(f, "{image} is not signed as it must be: wanted {wanted}; found ")?;
        match found.as_slice() {
            [] => f.write_str("no signature: sign it with cosign, or change what is wanted")?,
            found => f.write_str(&found.join("; "))?,
        }
        if *needs_root {
            f.write_str(
                ". Certificates can only be verified with a trusted root: give its file as --trusted-root, in a \
                 cluster as spec.verification.trustedRoot of the PolicyServer",
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for VerifyError {}
