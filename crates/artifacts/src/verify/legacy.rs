//! Signatures of cosign before version 3: a JSON document that names the digest of the image. Annotations of its layer have
//! the signature and, for keyless signing, the certificate and the log entry.
//!
//! This module converts such a certificate and log entry to a Sigstore bundle, so that both formats have one verification.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Value, json};
use sigstore_verify::types::Bundle;

use super::claims::{Annotations, Identity, identity_of};
use super::key::decode;
use super::root::TrustRoot;
use crate::digest::Digest;

/// The type of the document.
const TYPE: &str = "cosign container image signature";

const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const CERTIFICATE: &str = "dev.sigstore.cosign/certificate";
const CHAIN: &str = "dev.sigstore.cosign/chain";
const LOG: &str = "dev.sigstore.cosign/bundle";

/// A signature that names the image.
#[derive(Debug)]
pub(super) struct LegacySignature<'a> {
    /// The bytes that the signature covers.
    pub payload: &'a [u8],
    pub signature: Vec<u8>,
    /// The annotations of the document, which the signature covers.
    pub annotations: Annotations,
    /// The annotations of the layer, which the signature does not cover.
    layer: &'a Annotations,
}

#[derive(Deserialize)]
struct Document {
    critical: Critical,
    #[serde(default)]
    optional: Option<serde_json::Map<String, Value>>,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

/// The signed entry timestamp of the log, in the format of cosign.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LogBundle {
    signed_entry_timestamp: String,
    payload: LogEntry,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogEntry {
    body: String,
    integrated_time: i64,
    log_index: i64,
    #[serde(rename = "logID")]
    log_id: String,
}

impl<'a> LegacySignature<'a> {
    pub(super) fn read(payload: &'a [u8], layer: &'a Annotations, manifest: &Digest) -> Result<Self, String> {
        let document: Document =
            serde_json::from_slice(payload).map_err(|error| format!("its payload is not understood: {error}"))?;
        let Critical { image, kind } = document.critical;
        if kind != TYPE {
            return Err(format!("its type is {kind:?} instead of {TYPE:?}"));
        }
        if image.digest != manifest.to_string() {
            return Err(format!("it signs the image {}", image.digest));
        }
        let signature = layer.get(SIGNATURE).ok_or_else(|| format!("the annotation {SIGNATURE} is missing"))?;
        let signature = decode(signature).ok_or_else(|| format!("the annotation {SIGNATURE} is not Base64"))?;
        let annotations = document.optional.unwrap_or_default();
        let annotations = annotations.into_iter().filter_map(|(name, value)| match value {
            Value::String(text) => Some((name, text)),
            _ => None,
        });
        Ok(Self { payload, signature, annotations: annotations.collect(), layer })
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.layer.contains_key(CERTIFICATE)
    }

    /// Verifies the certificate and returns its identity; `None` if the signature has no certificate.
    pub(super) fn identity(&self, root: &TrustRoot) -> Option<Result<Identity, String>> {
        let certificate = self.layer.get(CERTIFICATE)?;
        Some(self.chain(certificate).and_then(|chain| {
            let bundle = self.to_bundle(&chain)?;
            identity_of(root.verifier.verify(self.payload, &bundle, &root.policy()))
        }))
    }

    /// Returns the certificate with its chain.
    fn chain(&self, certificate: &str) -> Result<Vec<CertificateDer<'static>>, String> {
        let pems = [Some(certificate), self.layer.get(CHAIN).map(String::as_str)];
        let pem = pems.into_iter().flatten().collect::<Vec<_>>().join("\n");
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        chain.map_err(|error| format!("the annotation {CERTIFICATE} or {CHAIN} is not PEM: {error}"))
    }

    /// Converts the signature to a Sigstore bundle with these certificates.
    pub(super) fn to_bundle(&self, chain: &[CertificateDer<'_>]) -> Result<Bundle, String> {
        let text =
            self.layer.get(LOG).ok_or("it has no log entry: the annotation dev.sigstore.cosign/bundle is missing")?;
        let malformed = |error: String| format!("the annotation {LOG} is not understood: {error}");
        let LogBundle { signed_entry_timestamp, payload: entry } =
            serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
        let certificates: Vec<_> = chain.iter().map(|der| json!({"rawBytes": STANDARD.encode(der)})).collect();
        let log_id =
            from_hex(&entry.log_id).ok_or_else(|| malformed("logID is not a hexadecimal number".to_owned()))?;
        let bundle = json!({
            "mediaType": "application/vnd.dev.sigstore.bundle+json;version=0.1",
            "verificationMaterial": {
                "x509CertificateChain": {"certificates": certificates},
                "tlogEntries": [{
                    "logIndex": entry.log_index.to_string(),
                    "logId": {"keyId": STANDARD.encode(log_id)},
                    "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
                    "integratedTime": entry.integrated_time.to_string(),
                    "inclusionPromise": {"signedEntryTimestamp": signed_entry_timestamp},
                    "canonicalizedBody": entry.body,
                }],
            },
            "messageSignature": {
                "messageDigest": {
                    "algorithm": "SHA2_256",
                    "digest": STANDARD.encode(Digest::of(self.payload).as_bytes()),
                },
                "signature": STANDARD.encode(&self.signature),
            },
        });
        Bundle::from_json(&bundle.to_string()).map_err(|error| malformed(error.to_string()))
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().filter(|_| pair.len() == 2)).collect()
}
