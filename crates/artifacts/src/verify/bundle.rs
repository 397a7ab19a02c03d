//! Signatures of cosign version 3 and later: Sigstore bundles with a signed statement that names the digest of the image.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigstore_verify::types::{Bundle, DsseEnvelope, Sha256Hash, SignatureContent};

use super::claims::{Annotations, Identity, identity_of};
use super::root::TrustRoot;
use crate::digest::Digest;

/// The predicate type of a signature. Statements of other types, such as provenance or scan results, are not signatures.
const SIGNATURE_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";
const IN_TOTO_TYPE: &str = "application/vnd.in-toto+json";

/// A bundle whose statement is a signature of the image.
#[derive(Debug)]
pub(super) struct BundleSignature {
    pub bundle: Bundle,
    pub manifest: Digest,
    /// The annotations of the statement, which the signature covers.
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

impl BundleSignature {
    pub(super) fn read(bundle: &Bytes, manifest: &Digest) -> Result<Self, String> {
        let text = std::str::from_utf8(bundle).map_err(|error| format!("its bundle is not UTF-8: {error}"))?;
        let bundle = Bundle::from_json(text).map_err(|error| format!("its bundle is not understood: {error}"))?;
        let SignatureContent::DsseEnvelope(envelope) = bundle.content.clone() else {
            return Err("its bundle holds no DSSE envelope".to_owned());
        };
        if envelope.payload_type != IN_TOTO_TYPE {
            return Err(format!("its bundle holds no in-toto statement but {:?}", envelope.payload_type));
        }
        let statement: Statement = serde_json::from_slice(envelope.payload.as_bytes())
            .map_err(|error| format!("its statement is not understood: {error}"))?;
        if statement.predicate_type != SIGNATURE_PREDICATE {
            return Err(format!(
                "its statement has the predicate type {:?} instead of a cosign signature",
                statement.predicate_type
            ));
        }
        let hex = manifest.hex();
        let is_image = |subject: &&Subject| subject.digest.get("sha256").and_then(Value::as_str) == Some(hex.as_str());
        let subject = statement.subject.iter().find(is_image).ok_or("it signs another image")?;
        let annotations = subject.annotations.iter().flatten();
        let annotations = annotations.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        Ok(Self { manifest: *manifest, annotations: annotations.collect(), envelope, bundle })
    }

    /// Returns the bytes that the signature covers.
    pub(super) fn message(&self) -> Vec<u8> {
        self.envelope.pae()
    }

    pub(super) fn signature(&self) -> &[u8] {
        self.envelope.signature.sig.as_bytes()
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.bundle.signing_certificate().is_some()
    }

    /// Returns the digest of the image, as the artifact to verify the bundle for.
    pub(super) fn artifact(&self) -> Sha256Hash {
        Sha256Hash::new(*self.manifest.as_bytes())
    }

    /// Verifies the certificate and returns its identity; `None` if the bundle has no certificate.
    pub(super) fn identity(&self, root: &TrustRoot) -> Option<Result<Identity, String>> {
        self.bundle.signing_certificate()?;
        Some(identity_of(root.verifier.verify(self.artifact(), &self.bundle, &root.policy())))
    }
}
