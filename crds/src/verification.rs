//! `spec.verification` of a `PolicyServer`: which signatures modules need. The fields are those of Kubewarden's
//! verification settings, so that they can be moved here as they are.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which signatures modules need: all of `allOf`, and so many of `anyOf` as that says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.allOf) && self.allOf.size() > 0) || has(self.anyOf)")
        .message("needs at least one signature in `allOf` or `anyOf`")
)]
pub struct Verification {
    /// Signatures that a module needs, each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub all_of: Vec<Signature>,
    /// Signatures of which some are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any_of: Option<AnyOf>,
    /// The ConfigMap of the operator's namespace, and its key, with Sigstore's `trusted_root.json`: who vouches for identities
    /// and certificates. Nobody is asked over the network. Without it only signatures with keys can be verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_root: Option<ConfigMapKeyRef>,
}

/// One key of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ConfigMapKeyRef {
    pub name: String,
    pub key: String,
}

/// Signatures of which some are enough.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minimumMatches) || self.minimumMatches <= self.signatures.size()")
        .message("`minimumMatches` is more than there are `signatures`")
)]
pub struct AnyOf {
    /// How many. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub minimum_matches: Option<u32>,
    #[schemars(length(min = 1, max = 20))]
    pub signatures: Vec<Signature>,
}

/// One signature, made with cosign.
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
    /// What tells who signed.
    pub kind: SignatureKind,
    /// Of the kind pubKey: the public key in PEM: ECDSA (P-256 or P-384), Ed25519, or RSA from 2048 bits on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Of the kind genericIssuer: who vouches for the subject, such as https://accounts.google.com.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub issuer: Option<String>,
    /// Of the kind genericIssuer: who signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<SignatureSubject>,
    /// Of the kind githubAction: the owner of the repository whose workflow signed. Of the kind pubKey: for people only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub owner: Option<String>,
    /// Of the kind githubAction: the repository whose workflow signed, without its owner. Default: any of the owner's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub repo: Option<String>,
    /// Of the kind certificate: the certificate in PEM whose key signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Of the kind certificate: its chain, each in PEM, up to the authority that is trusted. Default: the certificate itself is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub certificate_chain: Option<Vec<String>>,
    /// Of the kind certificate: whether a log of the trusted root must show that it was valid when it signed; else it must be
    /// valid when the module is fetched. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_rekor_bundle: Option<bool>,
    /// What must have been signed beside the module (`cosign sign -a name=value`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What tells who signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SignatureKind {
    PubKey,
    GenericIssuer,
    GithubAction,
    Certificate,
}

/// Whom a certificate is for; exactly one of both.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.equal) != has(self.urlPrefix)").message("needs exactly one of `equal` and `urlPrefix`")
)]
pub struct SignatureSubject {
    /// Exactly this address or URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub equal: Option<String>,
    /// This URL or one below it: https://github.com/org covers https://github.com/org/repo, and not
    /// https://github.com/org-evil.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub url_prefix: Option<String>,
}
