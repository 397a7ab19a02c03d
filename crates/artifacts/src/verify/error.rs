//! The error of a failed verification: the required and the found signatures.

use std::fmt;

/// The error of an image without the required signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// The image with its digest.
    pub image: String,
    /// The requirements that are not met.
    pub wanted: String,
    /// The signatures of the image, each with the reason why it does not count.
    pub found: Vec<String>,
    /// True if the verification needs a trusted root and has none.
    pub needs_root: bool,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, wanted, found, needs_root } = self;
        write!(f, "{image} is not signed as required: wanted {wanted}; found ")?;
        match found.as_slice() {
            [] => f.write_str("no signature: sign the image with cosign, or change the verification settings")?,
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
