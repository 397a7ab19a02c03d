//! A signature as it was found beside an image, and what it proves.

use std::fmt;

use bytes::Bytes;

use super::bundle::Bundled;
use super::certificate::SigningCertificate;
use super::claims::{Annotations, Identity};
use super::key::PublicKey;
use super::legacy::Legacy;
use super::root::TrustRoot;
use super::signed::Signed;
use crate::digest::Digest;

/// A signature from a registry. Nothing of it is known to be true.
#[derive(Clone, Debug)]
pub(crate) enum Candidate {
    /// A layer of an artifact under the tag `sha256-<digest>.sig`: what was signed, and the layer's annotations.
    Layer { payload: Bytes, annotations: Annotations },
    /// A bundle of Sigstore's, in JSON.
    Bundle(Bytes),
}

/// What a signature proves.
#[derive(Debug)]
pub(super) struct Examined<'a> {
    /// Or why it proves nothing of this image.
    signed: Result<Signed<'a>, String>,
    /// Whom its certificate is for; none without a certificate or a root of trust.
    identity: Option<Result<Identity, String>>,
    root: Option<&'a TrustRoot>,
}

impl Candidate {
    /// Reads it as a signature of the image with this digest.
    pub(super) fn examine<'a>(&'a self, manifest: &Digest, root: Option<&'a TrustRoot>) -> Examined<'a> {
        let signed = match self {
            Self::Layer { payload, annotations } => Legacy::read(payload, annotations, manifest).map(Signed::Legacy),
            Self::Bundle(bundle) => Bundled::read(bundle, manifest).map(|bundle| Signed::Bundle(bundle.into())),
        };
        let identity = signed.as_ref().ok().zip(root).and_then(|(signed, root)| signed.identity(root));
        Examined { signed, identity, root }
    }
}

impl Examined<'_> {
    pub(super) fn is_signed_with(&self, key: &PublicKey) -> bool {
        self.signed.as_ref().is_ok_and(|signed| signed.is_signed_with(key))
    }

    pub(super) fn is_signed_by(&self, certificate: &SigningCertificate) -> bool {
        self.signed.as_ref().is_ok_and(|signed| certificate.has_signed(signed, self.root))
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()?.as_ref().ok()
    }

    /// What the signer noted. It counts only where the signature does.
    pub(super) fn annotations(&self) -> &Annotations {
        static NONE: Annotations = Annotations::new();
        self.signed.as_ref().map_or(&NONE, Signed::annotations)
    }
}

impl fmt::Display for Examined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.signed, &self.identity) {
            (Err(why), _) => return write!(f, "a signature that is none of this image: {why}"),
            (_, Some(Err(why))) => write!(f, "a signature whose certificate does not hold: {why}")?,
            (_, Some(Ok(Identity { issuer, subject }))) => {
                write!(f, "a signature of {subject:?}, vouched for by {issuer:?}")?;
            }
            (Ok(signed), None) if signed.has_certificate() => {
                f.write_str("a signature with a certificate that is not wanted or cannot be verified")?;
            }
            (Ok(_), None) => {
                f.write_str("a signature with a key, which is not the wanted one or has other annotations")?;
            }
        }
        if self.annotations().is_empty() { Ok(()) } else { write!(f, " (annotations {:?})", self.annotations()) }
    }
}
