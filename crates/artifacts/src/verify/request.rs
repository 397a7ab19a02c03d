//! Verification requests of policies: `v1/verify` and `v2/verify` of the Kubewarden host capability `oci`.

use serde::Deserialize;

use super::certificate::SigningCertificate;
use super::claims::Annotations;
use super::key::{KeyError, PublicKey};
use super::requirement::{Requirement, Signer};
use super::subject::{PrefixError, Subject};
use crate::reference::{Artifact, ArtifactError};

/// The maximum number of required signatures, because each is compared with each signature of the image.
const MAX_SIGNERS: usize = 20;

/// An image, and the signatures that it must all have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyRequest {
    pub image: Artifact,
    pub requirements: Vec<Requirement>,
}

/// The error of a verification request that is not valid.
#[derive(Debug, thiserror::Error)]
pub enum VerifyRequestError {
    #[error("the request is not understood: {0}")]
    Json(#[from] serde_json::Error),
    #[error("image: {0}")]
    Image(#[from] ArtifactError),
    #[error("pub_keys[{index}]: {error}")]
    Key { index: usize, error: KeyError },
    #[error("keyless_prefix[{index}].url_prefix: {error}")]
    Prefix { index: usize, error: PrefixError },
    #[error("certificate: {0}")]
    Certificate(KeyError),
    #[error("{0}: is empty: name at least one signer")]
    Empty(&'static str),
    #[error("{0}: has more than {MAX_SIGNERS} items")]
    TooMany(&'static str),
}

/// A request of `v1/verify`, where a field around the request names its kind.
#[derive(Deserialize)]
enum Version1 {
    #[serde(rename = "SigstorePubKeyVerify")]
    Keys(KeysRequest),
    #[serde(rename = "SigstoreKeylessVerify")]
    Keyless(KeylessRequest),
}

/// A request of `v2/verify`, where the field `type` names its kind.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Version2 {
    #[serde(rename = "SigstorePubKeyVerify")]
    Keys(KeysRequest),
    #[serde(rename = "SigstoreKeylessVerify")]
    Keyless(KeylessRequest),
    #[serde(rename = "SigstoreKeylessPrefixVerify")]
    KeylessPrefixes(KeylessPrefixRequest),
    #[serde(rename = "SigstoreGithubActionsVerify")]
    GithubActions(GithubActionsRequest),
    #[serde(rename = "SigstoreCertificateVerify")]
    Certificate(CertificateRequest),
}

#[derive(Deserialize)]
struct KeysRequest {
    image: String,
    pub_keys: Vec<String>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct KeylessRequest {
    image: String,
    keyless: Vec<KeylessIdentity>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct KeylessIdentity {
    issuer: String,
    subject: String,
}

#[derive(Deserialize)]
struct KeylessPrefixRequest {
    image: String,
    keyless_prefix: Vec<Prefix>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Prefix {
    issuer: String,
    url_prefix: String,
}

#[derive(Deserialize)]
struct GithubActionsRequest {
    image: String,
    owner: String,
    #[serde(default)]
    repo: Option<String>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct CertificateRequest {
    image: String,
    certificate: Vec<u8>,
    #[serde(default)]
    certificate_chain: Option<Vec<Vec<u8>>>,
    require_rekor_bundle: bool,
    #[serde(default)]
    annotations: Option<Annotations>,
}

impl VerifyRequest {
    /// Parses the payload of `v1/verify`.
    ///
    /// # Errors
    /// Returns an error if the payload is malformed, or requires no signature or too many signatures.
    pub fn version1(payload: &[u8]) -> Result<Self, VerifyRequestError> {
        match serde_json::from_slice(payload)? {
            Version1::Keys(request) => keys(request),
            Version1::Keyless(request) => keyless(request),
        }
    }

    /// Parses the payload of `v2/verify`.
    ///
    /// # Errors
    /// Returns the errors of [`VerifyRequest::version1`].
    pub fn version2(payload: &[u8]) -> Result<Self, VerifyRequestError> {
        match serde_json::from_slice(payload)? {
            Version2::Keys(request) => keys(request),
            Version2::Keyless(request) => keyless(request),
            Version2::KeylessPrefixes(KeylessPrefixRequest { image, keyless_prefix, annotations }) => {
                let signers = keyless_prefix.into_iter().enumerate().map(|(index, Prefix { issuer, url_prefix })| {
                    let prefix = url_prefix.parse().map_err(|error| VerifyRequestError::Prefix { index, error })?;
                    Ok(Signer::Identity { issuer, subject: Subject::Prefix(prefix) })
                });
                Self::new(&image, signers.collect::<Result<_, VerifyRequestError>>()?, annotations, "keyless_prefix")
            }
            Version2::GithubActions(GithubActionsRequest { image, owner, repo, annotations }) => {
                if owner.is_empty() {
                    return Err(VerifyRequestError::Empty("owner"));
                }
                Self::new(&image, vec![Signer::GithubAction { owner, repo }], annotations, "owner")
            }
            Version2::Certificate(request) => {
                let chain = request.certificate_chain.unwrap_or_default();
                let chain: Vec<&[u8]> = chain.iter().map(Vec::as_slice).collect();
                let certificate = SigningCertificate::parse(&request.certificate, &chain, request.require_rekor_bundle)
                    .map_err(VerifyRequestError::Certificate)?;
                Self::new(&request.image, vec![Signer::Certificate(certificate)], request.annotations, "certificate")
            }
        }
    }

    fn new(
        image: &str,
        signers: Vec<Signer>,
        annotations: Option<Annotations>,
        field: &'static str,
    ) -> Result<Self, VerifyRequestError> {
        if signers.is_empty() {
            return Err(VerifyRequestError::Empty(field));
        }
        if signers.len() > MAX_SIGNERS {
            return Err(VerifyRequestError::TooMany(field));
        }
        let annotations = annotations.unwrap_or_default();
        let requirements =
            signers.into_iter().map(|signer| Requirement { signer, annotations: annotations.clone() }).collect();
        Ok(Self { image: Artifact::from_image_name(image)?, requirements })
    }
}

fn keys(KeysRequest { image, pub_keys, annotations }: KeysRequest) -> Result<VerifyRequest, VerifyRequestError> {
    let signers = pub_keys.iter().enumerate().map(|(index, pem)| {
        let key = PublicKey::from_pem(pem).map_err(|error| VerifyRequestError::Key { index, error })?;
        Ok(Signer::Key(key))
    });
    VerifyRequest::new(&image, signers.collect::<Result<_, VerifyRequestError>>()?, annotations, "pub_keys")
}

fn keyless(
    KeylessRequest { image, keyless, annotations }: KeylessRequest,
) -> Result<VerifyRequest, VerifyRequestError> {
    let signers = keyless
        .into_iter()
        .map(|KeylessIdentity { issuer, subject }| Signer::Identity { issuer, subject: Subject::Equal(subject) });
    VerifyRequest::new(&image, signers.collect(), annotations, "keyless")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn requests_of_both_versions_are_parsed() {
        let key = rcgen::KeyPair::generate().unwrap().public_key_pem();
        let certificate = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem().into_bytes();
        let tagged = |kind: &str, mut request: Value| {
            request["type"] = json!(kind);
            request["image"] = json!("nginx");
            request
        };
        let pub_keys = json!({"image": "nginx", "pub_keys": [key, key], "annotations": {"env": "prod"}});
        for (request, count) in [
            (tagged("SigstorePubKeyVerify", pub_keys.clone()), 2),
            (tagged("SigstoreKeylessVerify", json!({"keyless": [{"issuer": "i", "subject": "s"}]})), 1),
            (
                tagged(
                    "SigstoreKeylessPrefixVerify",
                    json!({"keyless_prefix": [{"issuer": "i", "url_prefix": "https://github.com/org/"}]}),
                ),
                1,
            ),
            (tagged("SigstoreGithubActionsVerify", json!({"owner": "org", "repo": null, "annotations": null})), 1),
            (
                tagged(
                    "SigstoreCertificateVerify",
                    json!({"certificate": certificate, "certificate_chain": null, "require_rekor_bundle": true}),
                ),
                1,
            ),
        ] {
            let parsed = VerifyRequest::version2(request.to_string().as_bytes()).unwrap();
            assert_eq!(parsed.requirements.len(), count, "{request}");
            assert_eq!(parsed.image.to_string(), "docker.io/library/nginx:latest");
        }
        let version1 = json!({"SigstorePubKeyVerify": pub_keys}).to_string();
        let parsed = VerifyRequest::version1(version1.as_bytes()).unwrap();
        assert_eq!(parsed.requirements[1].annotations["env"], "prod");
    }

    #[test]
    fn empty_and_malformed_requests_are_refused() {
        for (request, wanted) in [
            (json!({"type": "SigstorePubKeyVerify", "image": "a", "pub_keys": []}), "pub_keys: is empty"),
            (json!({"type": "SigstoreKeylessVerify", "image": "a", "keyless": []}), "keyless: is empty"),
            (
                json!({"type": "SigstoreKeylessVerify", "image": "a", "keyless": vec![json!({"issuer": "i", "subject": "s"}); 21]}),
                "keyless: has more than 20",
            ),
            (json!({"type": "SigstoreGithubActionsVerify", "image": "a", "owner": ""}), "owner: is empty"),
            (
                json!({"type": "SigstorePubKeyVerify", "image": "a", "pub_keys": ["x"]}),
                "pub_keys[0]: is not a public key",
            ),
            (json!({"type": "SigstorePubKeyVerify", "image": "A b", "pub_keys": []}), "pub_keys: is empty"),
            (json!({"type": "SigstoreGithubActionsVerify", "image": "A b", "owner": "o"}), "image: "),
            (json!({"type": "Other", "image": "a"}), "Other"),
            (
                json!({"type": "SigstoreCertificateVerify", "image": "a", "certificate": [1], "require_rekor_bundle": false}),
                "certificate: ",
            ),
        ] {
            let error = VerifyRequest::version2(request.to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{request}: {error}");
        }
    }
}
