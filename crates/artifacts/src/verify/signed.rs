//! A signature in one of the two formats of cosign.

use super::bundle::Bundled;
use super::claims::{Annotations, Identity};
use super::key::PublicKey;
use super::legacy::Legacy;
use super::root::TrustRoot;

/// A signature over the digest of the image. Nothing of it is verified yet.
#[derive(Debug)]
pub(super) enum Signed<'a> {
    Legacy(Legacy<'a>),
    Bundle(Box<Bundled>),
}

impl Signed<'_> {
    pub(super) fn identity(&self, root: &TrustRoot) -> Option<Result<Identity, String>> {
        match self {
            Self::Legacy(legacy) => legacy.identity(root),
            Self::Bundle(bundle) => bundle.identity(root),
        }
    }

    pub(super) fn annotations(&self) -> &Annotations {
        match self {
            Self::Legacy(legacy) => &legacy.annotations,
            Self::Bundle(bundle) => &bundle.annotations,
        }
    }

    pub(super) fn has_certificate(&self) -> bool {
        match self {
            Self::Legacy(legacy) => legacy.has_certificate(),
            Self::Bundle(bundle) => bundle.has_certificate(),
        }
    }

    /// Returns whether `key` verifies the signature.
    pub(super) fn is_signed_with(&self, key: &PublicKey) -> bool {
        match self {
            Self::Legacy(legacy) => key.has_signed(legacy.payload, &legacy.signature),
            Self::Bundle(bundle) => key.has_signed(&bundle.message(), bundle.signature()),
        }
    }
}
