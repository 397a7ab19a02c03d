//! `spec.verification` of a `PolicyServer`: the signatures that modules need. The fields are those of Kubewarden's
//! verification settings, so that users can copy their settings unchanged.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The signatures that modules need: all of `allOf`, and at least `minimumMatches` of `anyOf`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.allOf) && self.allOf.size() > 0) || has(self.anyOf)")
        .message("needs at least one signature in `allOf` or `anyOf`")
)]
pub struct Verification {
    /// Signatures that a module must all have: at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub all_of: Vec<Signature>,
    /// Signatures of which a module must have a minimum number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any_of: Option<AnyOf>,
    /// The key of a ConfigMap in the operator's namespace that has the `trusted_root.json` of Sigstore: the certificate
    /// authorities and transparency logs that are trusted for keyless signatures and certificates. The policy server never
    /// fetches it from the network. Default: none, which can verify only signatures of the kind pubKey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_root: Option<ConfigMapKeyRef>,
}

/// A reference to one key of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ConfigMapKeyRef {
    /// The name of the ConfigMap.
    pub name: String,
    /// The key in the `data` of the ConfigMap.
    pub key: String,
}

/// Signatures of which a module must have a minimum number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minimumMatches) || self.minimumMatches <= self.signatures.size()")
        .message("`minimumMatches` is greater than the number of `signatures`")
)]
pub struct AnyOf {
    /// The number of different signers that must have signed the module: 1 to 20. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub minimum_matches: Option<u32>,
    /// The signatures that count: 1 to 20.
    #[schemars(length(min = 1, max = 20))]
    pub signatures: Vec<Signature>,
}

/// A signature made with cosign.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.key) == (self.kind == 'pubKey')").message("a `key` is for the kind pubKey, which needs it"),
    validation = Rule::new("(has(self.issuer) && has(self.subject)) == (self.kind == 'genericIssuer')")
        .message("`issuer` and `subject` are for the kind genericIssuer, which needs both"),
    validation = Rule::new("self.kind == 'pubKey' || has(self.owner) == (self.kind == 'githubAction')")
        .message("an `owner` is for the kind githubAction, which needs it, and pubKey"),
    validation = Rule::new("!has(self.repo) || self.kind == 'githubAction'").message("a `repo` is for the kind githubAction"),
    validation = Rule::new("has(self.certificate) == (self.kind == 'certificate')")
        .message("a `certificate` is for the kind certificate, which needs it"),
    validation = Rule::new("self.kind == 'certificate' || !(has(self.certificateChain) || has(self.requireRekorBundle))")
        .message("`certificateChain` and `requireRekorBundle` are for the kind certificate")
)]
pub struct Signature {
    /// The way in which the signer is identified: by a public key (`pubKey`), by a keyless signature of an OpenID Connect
    /// identity (`genericIssuer`) or of a GitHub Actions workflow (`githubAction`), or by a certificate (`certificate`).
    pub kind: SignatureKind,
    /// The public key in PEM: ECDSA (P-256 or P-384), Ed25519, or RSA with at least 2048 bits. Required for the kind pubKey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The OpenID Connect issuer of the signer's identity, such as https://accounts.google.com. Required for the kind
    /// genericIssuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub issuer: Option<String>,
    /// The certificate identity of the signer. Required for the kind genericIssuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<SignatureSubject>,
    /// The owner of the GitHub repository whose workflow signed. Required for the kind githubAction. For the kind pubKey it
    /// is a note for people, without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub owner: Option<String>,
    /// The name of the GitHub repository whose workflow signed, without its owner. Only for the kind githubAction. Default: any
    /// repository of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub repo: Option<String>,
    /// The certificate in PEM whose key signed. Required for the kind certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The chain of `certificate`, each in PEM, up to the trusted certificate authority, which is the last: at most 10.
    /// Only for the kind certificate. Default: `certificate` itself is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub certificate_chain: Option<Vec<String>>,
    /// True if a transparency log of the trusted root must prove that `certificate` was valid at the time of signing. If false,
    /// `certificate` must be valid when the module is fetched. Only for the kind certificate. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_rekor_bundle: Option<bool>,
    /// Annotations that the signature must include (`cosign sign -a name=value`). Default: no annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The way in which a signer is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SignatureKind {
    PubKey,
    GenericIssuer,
    GithubAction,
    Certificate,
}

/// The certificate identity of a signer: exactly one of `equal` and `urlPrefix`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.equal) != has(self.urlPrefix)").message("needs exactly one of `equal` and `urlPrefix`")
)]
pub struct SignatureSubject {
    /// The exact identity: an email address or a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub equal: Option<String>,
    /// A URL that is the identity or an ancestor of it: https://github.com/org covers https://github.com/org/repo, but not
    /// https://github.com/org-evil.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub url_prefix: Option<String>,
}
