//! A Sigstore for tests: a CA that certifies identities, a transparency log, and image signatures in the formats of cosign.

#![allow(dead_code, reason = "each test program uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

pub mod stage;

use std::collections::BTreeMap;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proviso_artifacts::Digest;
use proviso_e2e::Registry;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType, SigningKey as _, date_time_ymd,
};
use serde_json::{Value, json};

pub const ISSUER: &str = "https://issuer.example.com";
/// The time of signatures, 2020-01-15. The certificates of the tests are valid at this time only, and are long expired.
pub const SIGNED: i64 = 1_579_046_400;
const DAY: i64 = 86_400;

pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// A CA and a transparency log.
pub struct Sigstore {
    authority: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
    log: KeyPair,
}

impl Sigstore {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2040, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        Self { authority: Issuer::new(params, key), certificate, log: KeyPair::generate().unwrap() }
    }

    /// Returns the content of `trusted_root.json`.
    pub fn root(&self) -> Value {
        let valid = json!({"start": "2019-01-01T00:00:00Z"});
        json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [{
                "baseUrl": "https://log.example.com",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": base64(self.log.subject_public_key_info()),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
                "logId": {"keyId": base64(self.log_id().as_bytes())},
            }],
            "certificateAuthorities": [{
                "subject": {"organization": "example.com", "commonName": "authority"},
                "uri": "https://authority.example.com",
                "certChain": {"certificates": [{"rawBytes": base64(self.certificate.der())}]},
                "validFor": valid,
            }],
        })
    }

    pub fn certificate(&self) -> String {
        self.certificate.pem()
    }

    fn log_id(&self) -> Digest {
        Digest::of(&self.log.subject_public_key_info())
    }

    /// Returns a certificate of `key` for `subject`, valid in January 2020. An empty `issuer` omits the issuer extension.
    pub fn certify(&self, key: &KeyPair, issuer: &str, subject: &str) -> rcgen::Certificate {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Certificates of Sigstore have an empty distinguished name.
        params.distinguished_name = DistinguishedName::new();
        let name = subject.try_into().unwrap();
        params.subject_alt_names =
            vec![if subject.contains("://") { SanType::URI(name) } else { SanType::Rfc822Name(name) }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        params.not_before = date_time_ymd(2020, 1, 14);
        params.not_after = date_time_ymd(2020, 1, 16);
        if !issuer.is_empty() {
            let utf8 = [&[0x0c, u8::try_from(issuer.len()).unwrap()], issuer.as_bytes()].concat();
            params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57264, 1, 8], utf8)];
        }
        params.signed_by(key, &self.authority).unwrap()
    }

    /// Returns the signed entry timestamp (SET) of an entry with this body, and the entry.
    pub fn promise(&self, body: &Value, time: i64) -> (String, Value) {
        let body = base64(body.to_string());
        let id = self.log_id().hex();
        let payload = format!(r#"{{"body":"{body}","integratedTime":{time},"logID":"{id}","logIndex":7}}"#);
        let promise = base64(self.log.sign(payload.as_bytes()).unwrap());
        (promise, json!({"body": body, "integratedTime": time, "logIndex": 7, "logID": id}))
    }

    /// Returns a keyless signature layer of a subject, logged while its certificate was valid.
    pub fn layer(&self, image: &str, issuer: &str, subject: &str) -> Layer {
        let key = KeyPair::generate().unwrap();
        let certificate = self.certify(&key, issuer, subject).pem();
        self.layer_with(image, &key, &certificate, SIGNED)
    }

    pub fn layer_with(&self, image: &str, key: &KeyPair, certificate: &str, time: i64) -> Layer {
        let mut layer = Layer::signed(key, &payload(image, &json!({"env": "prod"})));
        layer.set("dev.sigstore.cosign/certificate", certificate);
        self.log(&mut layer, certificate, time);
        layer
    }

    /// Adds the log entry to the annotations of a layer.
    pub fn log(&self, layer: &mut Layer, certificate: &str, time: i64) {
        let body = json!({
            "apiVersion": "0.0.1",
            "kind": "hashedrekord",
            "spec": {
                "data": {"hash": {"algorithm": "sha256", "value": Digest::of(&layer.payload).hex()}},
                "signature": {
                    "content": layer.annotations["dev.cosignproject.cosign/signature"],
                    "publicKey": {"content": base64(certificate)},
                },
            },
        });
        let (promise, payload) = self.promise(&body, time);
        let bundle = json!({"SignedEntryTimestamp": promise, "Payload": payload});
        layer.set("dev.sigstore.cosign/bundle", &bundle.to_string());
    }

    /// Returns a bundle with a statement about an image, signed keyless by a subject.
    pub fn bundle(&self, image: &str, predicate: &str, subject: &str) -> Value {
        let key = KeyPair::generate().unwrap();
        let certificate = self.certify(&key, ISSUER, subject);
        let (envelope, signature) = envelope(&key, image, predicate);
        let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
        let body = json!({
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": {"algorithm": "sha256", "value": Digest::of(envelope.to_string().as_bytes()).hex()},
                "payloadHash": {"algorithm": "sha256", "value": Digest::of(&payload).hex()},
                "signatures": [{"signature": signature, "verifier": base64(certificate.pem())}],
            },
        });
        let (promise, entry) = self.promise(&body, SIGNED);
        // The log has one entry, whose hash is the root hash.
        let leaf = Digest::of(&[&[0], body.to_string().as_bytes()].concat());
        let root = base64(leaf.as_bytes());
        let note = format!("log.example.com\n1\n{root}\n");
        let mut signature_with_hint = self.log_id().as_bytes()[..4].to_vec();
        signature_with_hint.extend(self.log.sign(note.as_bytes()).unwrap());
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": base64(certificate.der())},
                "tlogEntries": [{
                    "logIndex": "7",
                    "logId": {"keyId": base64(self.log_id().as_bytes())},
                    "kindVersion": {"kind": "dsse", "version": "0.0.1"},
                    "integratedTime": SIGNED.to_string(),
                    "inclusionPromise": {"signedEntryTimestamp": promise},
                    "inclusionProof": {
                        "logIndex": "0",
                        "rootHash": root,
                        "treeSize": "1",
                        "hashes": [],
                        "checkpoint": {"envelope": format!("{note}\n— log.example.com {}\n", base64(signature_with_hint))},
                    },
                    "canonicalizedBody": entry["body"],
                }],
                "timestampVerificationData": {"rfc3161Timestamps": []},
            },
            "dsseEnvelope": envelope,
        })
    }
}

/// Returns a DSSE envelope with a statement about an image, and its signature.
pub fn envelope(key: &KeyPair, image: &str, predicate: &str) -> (Value, String) {
    let kind = "application/vnd.in-toto+json";
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{
            "name": "",
            "digest": {"sha256": image.strip_prefix("sha256:").unwrap()},
            "annotations": {"env": "prod"},
        }],
        "predicateType": predicate,
        "predicate": {},
    });
    let payload = statement.to_string();
    let message = format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len());
    let signature = base64(key.sign(message.as_bytes()).unwrap());
    (
        json!({"payload": base64(&payload), "payloadType": kind, "signatures": [{"sig": signature, "keyid": ""}]}),
        signature,
    )
}

/// Returns the document that cosign before version 3 signs for an image.
pub fn payload(image: &str, optional: &Value) -> Value {
    json!({
        "critical": {
            "identity": {"docker-reference": "registry.example.com/a"},
            "image": {"docker-manifest-digest": image},
            "type": "cosign container image signature",
        },
        "optional": optional,
    })
}

/// Returns the time of [`SIGNED`] plus a number of days.
pub fn later(days: i64) -> i64 {
    SIGNED + days * DAY
}

/// A signature layer of the artifact under the tag of cosign.
#[derive(Clone)]
pub struct Layer {
    pub payload: Vec<u8>,
    pub annotations: BTreeMap<String, String>,
}

impl Layer {
    pub fn signed(key: &KeyPair, payload: &Value) -> Self {
        let payload = payload.to_string().into_bytes();
        let mut layer = Self { annotations: BTreeMap::new(), payload };
        let signature = base64(key.sign(&layer.payload).unwrap());
        layer.set("dev.cosignproject.cosign/signature", &signature);
        layer
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.annotations.insert(name.to_owned(), value.to_owned());
    }
}

/// Replaces the signatures of an image under the tag of cosign.
pub async fn attach(registry: &Registry, repository: &str, image: &str, signatures: &[Layer]) -> Result<()> {
    let mut layers = Vec::new();
    for Layer { payload, annotations } in signatures {
        layers.push(json!({
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            "digest": registry.upload(repository, payload).await?,
            "size": payload.len(),
            "annotations": annotations,
        }));
    }
    let tag = format!("{}.sig", image.replace(':', "-"));
    registry.push_manifest(repository, &tag, &manifest(registry, repository, layers).await?).await.map(drop)
}

/// Makes a bundle the only referrer of the image.
pub async fn refer(registry: &Registry, repository: &str, image: &str, bundle: &Value) -> Result<()> {
    let kind = "application/vnd.dev.sigstore.bundle.v0.3+json";
    let content = bundle.to_string();
    let layer = json!({
        "mediaType": kind,
        "digest": registry.upload(repository, content.as_bytes()).await?,
        "size": content.len(),
    });
    let manifest = manifest(registry, repository, vec![layer]).await?;
    let digest = registry.push_manifest(repository, "", &manifest).await?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest,
            "size": manifest.to_string().len(),
            "artifactType": kind,
        }],
    });
    registry.push_manifest(repository, &image.replace(':', "-"), &index).await.map(drop)
}

async fn manifest(registry: &Registry, repository: &str, layers: Vec<Value>) -> Result<Value> {
    let config = registry.upload(repository, b"{}").await?;
    Ok(json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2},
        "layers": layers,
    }))
}
