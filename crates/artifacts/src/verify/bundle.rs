//! Signatures as cosign writes them since its version 3: bundles of Sigstore's, in which a signed statement names the
//! digest of the image.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigstore_verify::types::{Bundle, DsseEnvelope, Sha256Hash, SignatureContent};

use super::claims::{Annotations, Identity, identity_of};
use super::root::TrustRoot;
use crate::digest::Digest;

/// What a statement says that is a signature. Others say how an image was built, or what was found in it; who says so
/// has not signed it.
const SIGNATURE: &str = "https://sigstore.dev/cosign/sign/v1";
const IN_TOTO: &str = "application/vnd.in-toto+json";

/// A bundle whose statement is a signature of the image.
#[derive(Debug)]
pub(super) struct Bundled {
    pub bundle: Bundle,
    pub manifest: Digest,
    /// Of the statement, so that they are signed too.
    pub annotations: Annotations,
    envelope: DsseEnvelope,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    predicate_type: String,
    subject: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    digest: Map<String, Value>,
    #[serde(default)]
    annotations: Option<Map<String, Value>>,
}

impl Bundled {
    pub(super) fn read(bundle: &Bytes, manifest: &Digest) -> Result<Self, String> {
        let text = std::str::from_utf8(bundle).map_err(|error| format!("its bundle is no text: {error}"))?;
        let bundle = Bundle::from_json(text).map_err(|error| format!("its bundle is not understood: {error}"))?;
        let SignatureContent::DsseEnvelope(envelope) = bundle.content.clone() else {
            return Err("its bundle holds no statement about an image".to_owned());
        };
        if envelope.payload_type != IN_TOTO {
            return Err(format!("its bundle holds no statement but {:?}", envelope.payload_type));
        }
        let statement: Statement = serde_json::from_slice(envelope.payload.as_bytes())
            .map_err(|error| format!("its statement is not understood: {error}"))?;
        if statement.predicate_type != SIGNATURE {
            return Err(format!("it states {:?}", statement.predicate_type));
        }
        let hex = manifest.hex();
        let is_it = |subject: &&Subject| subject.digest.get("sha256").and_then(Value::as_str) == Some(hex.as_str());
        let subject = statement.subject.iter().find(is_it).ok_or("it is one of another image")?;
        let annotations = subject.annotations.iter().flatten();
        let annotations = annotations.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        Ok(Self { manifest: *manifest, annotations: annotations.collect(), envelope, bundle })
    }

    /// What was signed.
    pub(super) fn message(&self) -> Vec<u8> {
        self.envelope.pae()
    }

    pub(super) fn signature(&self) -> &[u8] {
        self.envelope.signature.sig.as_bytes()
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.bundle.signing_certificate().is_some()
    }

    /// The digest that the statement names, as what the bundle is verified for.
    pub(super) fn artifact(&self) -> Sha256Hash {
        Sha256Hash::new(*self.manifest.as_bytes())
    }

    /// Whom the certificate is for, if there is one.
    pub(super) fn identity(&self, root: &TrustRoot) -> Option<Result<Identity, String>> {
        self.bundle.signing_certificate()?;
        Some(identity_of(root.verifier.verify(self.artifact(), &self.bundle, &root.policy())))
    }
}
