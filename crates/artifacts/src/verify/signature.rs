//! Signatures in the two formats of cosign.

use super::bundle::BundleSignature;
use super::claims::{Annotations, Identity};
use super::key::PublicKey;
use super::legacy::LegacySignature;
use super::root::TrustRoot;

/// A parsed signature of the image. Neither the signature nor its certificate is verified.
#[derive(Debug)]
pub(super) enum Signature<'a> {
    Legacy(LegacySignature<'a>),
    Bundle(Box<BundleSignature>),
}

impl Signature<'_> {
    /// Verifies the certificate and returns its identity; `None` if the signature has no certificate.
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

    /// Returns true if `key` verifies the signature.
    pub(super) fn is_signed_with(&self, key: &PublicKey) -> bool {
        match self {
            Self::Legacy(legacy) => key.has_signed(legacy.payload, &legacy.signature),
            Self::Bundle(bundle) => key.has_signed(&bundle.message(), bundle.signature()),
        }
    }
}
