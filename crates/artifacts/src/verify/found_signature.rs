//! The signatures of an image in its registry, and what they prove.

use std::fmt;

use bytes::Bytes;

use super::bundle::BundleSignature;
use super::certificate::SigningCertificate;
use super::claims::{Annotations, Identity};
use super::key::PublicKey;
use super::legacy::LegacySignature;
use super::root::TrustRoot;
use super::signature::Signature;
use crate::digest::Digest;

/// A signature from a registry, without any verification.
#[derive(Clone, Debug)]
pub(crate) enum FoundSignature {
    /// A layer of the artifact with the tag `sha256-<digest>.sig`: the signed payload, and the annotations of the layer.
    Layer { payload: Bytes, annotations: Annotations },
    /// A Sigstore bundle in JSON.
    Bundle(Bytes),
}

/// A signature that was parsed, and whose certificate was verified.
#[derive(Debug)]
pub(super) struct ExaminedSignature<'a> {
    /// The signature, or the reason why it is not a signature of the image.
    signature: Result<Signature<'a>, String>,
    /// The identity in the certificate, or the reason why the certificate is not valid; `None` without a certificate or a
    /// trusted root.
    identity: Option<Result<Identity, String>>,
    root: Option<&'a TrustRoot>,
}

impl FoundSignature {
    /// Parses the signature, and verifies its certificate for the image with the digest `manifest`.
    pub(super) fn examine<'a>(&'a self, manifest: &Digest, root: Option<&'a TrustRoot>) -> ExaminedSignature<'a> {
        let signature = match self {
            Self::Layer { payload, annotations } => {
                LegacySignature::read(payload, annotations, manifest).map(Signature::Legacy)
            }
            Self::Bundle(bundle) => {
                BundleSignature::read(bundle, manifest).map(|bundle| Signature::Bundle(bundle.into()))
            }
        };
        let identity = signature.as_ref().ok().zip(root).and_then(|(signature, root)| signature.identity(root));
        ExaminedSignature { signature, identity, root }
    }
}

impl ExaminedSignature<'_> {
    pub(super) fn is_signed_with(&self, key: &PublicKey) -> bool {
        self.signature.as_ref().is_ok_and(|signature| signature.is_signed_with(key))
    }

    pub(super) fn is_signed_by(&self, certificate: &SigningCertificate) -> bool {
        self.signature.as_ref().is_ok_and(|signature| certificate.has_signed(signature, self.root))
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()?.as_ref().ok()
    }

    /// Returns the annotations of the signature. They are valid only if the signature is valid.
    pub(super) fn annotations(&self) -> &Annotations {
        static NONE: Annotations = Annotations::new();
        self.signature.as_ref().map_or(&NONE, Signature::annotations)
    }
}

impl fmt::Display for ExaminedSignature<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.signature, &self.identity) {
            (Err(why), _) => return write!(f, "a signature that does not count for this image: {why}"),
            (_, Some(Err(why))) => write!(f, "a signature whose certificate failed verification: {why}")?,
            (_, Some(Ok(Identity { issuer, subject }))) => {
                write!(f, "a keyless signature of {subject:?} from the issuer {issuer:?}")?;
            }
            (Ok(signature), None) if signature.has_certificate() => {
                f.write_str("a signature with a certificate that is not the wanted one or cannot be verified")?;
            }
            (Ok(_), None) => {
                f.write_str("a signature with a key, which is not the wanted one or has other annotations")?;
            }
        }
        if self.annotations().is_empty() { Ok(()) } else { write!(f, " (annotations {:?})", self.annotations()) }
    }
}
