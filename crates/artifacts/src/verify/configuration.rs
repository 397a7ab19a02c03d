//! The required signatures of modules: the verification file of Kubewarden's tools (`apiVersion: v1`, `allOf`, `anyOf`). The
//! operator writes the file from `spec.verification` of a `PolicyServer`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::certificate::SigningCertificate;
use super::claims::Annotations;
use super::key::{KeyError, PublicKey};
use super::requirement::{Requirement, Signer};
use super::root::RootError;
use super::subject::{PrefixError, Subject};

/// The required signatures of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// The requirements that must all be met.
    pub(super) all_of: Vec<Requirement>,
    /// The requirements of which some must be met; `None` if there are none.
    pub(super) any_of: Option<AnyOf>,
}

/// Requirements of which a minimum number must be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnyOf {
    /// The minimum number of distinct signers.
    pub minimum: usize,
    pub requirements: Vec<Requirement>,
}

/// The error of verification settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("{path} cannot be read: {error}", path = path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("is malformed: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("is malformed: {0}")]
    Json(#[from] serde_json::Error),
    #[error("requires no signature: give `allOf` or `anyOf` at least one, or remove the file")]
    NoSignatures,
    #[error("anyOf.minimumMatches: is {minimum}, with {count} signatures: give 1 to {count}")]
    Minimum { minimum: usize, count: usize },
    #[error(
        "anyOf.minimumMatches: is {minimum}, but the signatures are of {signers} signers only: name each of them once"
    )]
    Signers { minimum: usize, signers: usize },
    #[error("{field}: {error}")]
    Key { field: String, error: KeyError },
    #[error("{field}.subject.urlPrefix: {error}")]
    Prefix { field: String, error: PrefixError },
    #[error("{0}.subject: needs exactly one of `equal` and `urlPrefix`")]
    Subject(String),
    #[error("{0}: is empty")]
    Empty(String),
    #[error(transparent)]
    Root(#[from] RootError),
}

#[derive(Deserialize)]
#[serde(tag = "apiVersion")]
enum Document {
    #[serde(rename = "v1")]
    V1(Version1),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Version1 {
    #[serde(default)]
    all_of: Option<Vec<SignatureSpec>>,
    #[serde(default)]
    any_of: Option<AnyOfSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnyOfSpec {
    #[serde(default = "one")]
    minimum_matches: usize,
    signatures: Vec<SignatureSpec>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum SignatureSpec {
    PubKey {
        /// The owner of the key, for human readers only.
        #[serde(default, rename = "owner")]
        _owner: Option<String>,
        key: String,
        #[serde(default)]
        annotations: Option<Annotations>,
    },
    GenericIssuer {
        issuer: String,
        subject: SubjectSpec,
        #[serde(default)]
        annotations: Option<Annotations>,
    },
    GithubAction {
        owner: String,
        #[serde(default)]
        repo: Option<String>,
        #[serde(default)]
        annotations: Option<Annotations>,
    },
    Certificate {
        certificate: String,
        #[serde(default)]
        certificate_chain: Vec<String>,
        #[serde(default = "yes")]
        require_rekor_bundle: bool,
        #[serde(default)]
        annotations: Option<Annotations>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SubjectSpec {
    equal: Option<String>,
    url_prefix: Option<String>,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

impl Verification {
    pub(super) fn all_of(requirements: Vec<Requirement>) -> Self {
        Self { all_of: requirements, any_of: None }
    }

    /// Reads the file. Returns the verification and the canonical text, which is independent of the YAML formatting.
    pub(super) fn read(path: &Path) -> Result<(Self, String), ConfigurationError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| ConfigurationError::File { path: path.to_owned(), error })?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<(Self, String), ConfigurationError> {
        let value: Value = serde_yaml::from_str(text)?;
        if value.is_null() {
            return Err(ConfigurationError::NoSignatures);
        }
        let canonical = value.to_string();
        let Document::V1(Version1 { all_of, any_of }) = serde_json::from_value(value)?;
        let all_of = requirements("allOf", all_of.unwrap_or_default())?;
        let any_of = any_of.map(|AnyOfSpec { minimum_matches: minimum, signatures }| {
            let count = signatures.len();
            if minimum == 0 || minimum > count {
                return Err(ConfigurationError::Minimum { minimum, count });
            }
            let requirements = requirements("anyOf.signatures", signatures)?;
            let signers = Signer::count_distinct(requirements.iter());
            if minimum > signers {
                return Err(ConfigurationError::Signers { minimum, signers });
            }
            Ok(AnyOf { minimum, requirements })
        });
        let any_of = any_of.transpose()?;
        if all_of.is_empty() && any_of.is_none() {
            return Err(ConfigurationError::NoSignatures);
        }
        Ok((Self { all_of, any_of }, canonical))
    }

    /// Returns true if a requirement needs a trusted root.
    pub(super) fn needs_root(&self) -> bool {
        let any_of = self.any_of.iter().flat_map(|any_of| &any_of.requirements);
        self.all_of.iter().chain(any_of).any(Requirement::needs_root)
    }
}

/// Converts the signatures of the field `at`.
fn requirements(at: &str, specs: Vec<SignatureSpec>) -> Result<Vec<Requirement>, ConfigurationError> {
    specs.into_iter().enumerate().map(|(index, spec)| spec.into_requirement(&format!("{at}[{index}]"))).collect()
}

impl SignatureSpec {
    fn into_requirement(self, at: &str) -> Result<Requirement, ConfigurationError> {
        let non_empty = |field: &str, text: String| {
            let is_empty = text.trim().is_empty();
            if is_empty { Err(ConfigurationError::Empty(format!("{at}.{field}"))) } else { Ok(text) }
        };
        let key = |field: &str| {
            let field = format!("{at}.{field}");
            |error| ConfigurationError::Key { field, error }
        };
        let (signer, annotations) = match self {
            Self::PubKey { key: pem, annotations, .. } => {
                (Signer::Key(PublicKey::from_pem(&pem).map_err(key("key"))?), annotations)
            }
            Self::GenericIssuer { issuer, subject, annotations } => {
                let subject = match subject {
                    SubjectSpec { equal: Some(name), url_prefix: None } => {
                        Subject::Equal(non_empty("subject.equal", name)?)
                    }
                    SubjectSpec { equal: None, url_prefix: Some(prefix) } => {
                        let error = |error| ConfigurationError::Prefix { field: at.to_owned(), error };
                        Subject::Prefix(prefix.parse().map_err(error)?)
                    }
                    _ => return Err(ConfigurationError::Subject(at.to_owned())),
                };
                (Signer::Identity { issuer: non_empty("issuer", issuer)?, subject }, annotations)
            }
            Self::GithubAction { owner, repo, annotations } => {
                let repo = repo.map(|repo| non_empty("repo", repo)).transpose()?;
                (Signer::GithubAction { owner: non_empty("owner", owner)?, repo }, annotations)
            }
            Self::Certificate { certificate, certificate_chain, require_rekor_bundle, annotations } => {
                let certificate = SigningCertificate::from_pem(&certificate, &certificate_chain, require_rekor_bundle);
                (Signer::Certificate(certificate.map_err(key("certificate"))?), annotations)
            }
        };
        Ok(Requirement { signer, annotations: annotations.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> String {
        serde_json::json!(rcgen::KeyPair::generate().unwrap().public_key_pem()).to_string()
    }

    #[test]
    fn the_verification_file_of_kubewarden_is_parsed() {
        let key = key();
        let text = format!(
            "apiVersion: v1
allOf:
  - kind: githubAction
    owner: org
    annotations: {{env: prod}}
anyOf:
  minimumMatches: 2
  signatures:
    - {{kind: pubKey, owner: ann, key: {key}}}
    - {{kind: genericIssuer, issuer: 'https://issuer', subject: {{equal: ann@example.com}}}}
    - {{kind: genericIssuer, issuer: 'https://issuer', subject: {{urlPrefix: 'https://github.com/org'}}}}
    - {{kind: githubAction, owner: org, repo: repo}}
"
        );
        let (verification, canonical) = Verification::parse(&text).unwrap();
        assert_eq!(verification.all_of[0].annotations["env"], "prod");
        let any_of = verification.any_of.as_ref().unwrap();
        assert_eq!((any_of.minimum, any_of.requirements.len()), (2, 4));
        assert!(verification.needs_root());
        let spaced = text.replace("owner: org\n", "owner:   org # a comment\n");
        assert_eq!(Verification::parse(&spaced).unwrap().1, canonical, "the formatting does not matter");
        let only_key = format!("apiVersion: v1\nanyOf: {{signatures: [{{kind: pubKey, key: {key}}}]}}");
        let (verification, _) = Verification::parse(&only_key).unwrap();
        assert!(verification.any_of.as_ref().unwrap().minimum == 1 && !verification.needs_root());
    }

    #[test]
    fn errors_of_an_empty_or_malformed_file_name_the_field() {
        let pub_key = format!("{{kind: pubKey, key: {}}}", key());
        for (text, wanted) in [
            ("", "requires no signature"),
            ("allOf: []", "apiVersion"),
            ("apiVersion: v2\nallOf: []", "v2"),
            ("apiVersion: v1", "requires no signature"),
            ("apiVersion: v1\nallOf: []", "requires no signature"),
            ("apiVersion: v1\nallof: []", "allof"),
            ("apiVersion: v1\nanyOf: {signatures: []}", "anyOf.minimumMatches: is 1, with 0 signatures"),
            (&format!("apiVersion: v1\nanyOf: {{minimumMatches: 0, signatures: [{pub_key}]}}"), "is 0, with 1"),
            (&format!("apiVersion: v1\nanyOf: {{minimumMatches: 2, signatures: [{pub_key}]}}"), "is 2, with 1"),
            (
                &format!("apiVersion: v1\nanyOf: {{minimumMatches: 2, signatures: [{pub_key}, {pub_key}]}}"),
                "anyOf.minimumMatches: is 2, but the signatures are of 1 signers only",
            ),
            ("apiVersion: v1\nallOf: [{kind: pubKey, key: x}]", "allOf[0].key: is not a public key or"),
            ("apiVersion: v1\nallOf: [{kind: other}]", "other"),
            ("apiVersion: v1\nallOf: [{kind: githubAction, owner: ''}]", "allOf[0].owner: is empty"),
            ("apiVersion: v1\nallOf: [{kind: githubAction, owner: a, rpeo: b}]", "rpeo"),
            ("apiVersion: v1\nallOf: [{kind: genericIssuer, issuer: a, subject: {}}]", "exactly one of `equal`"),
            ("apiVersion: v1\nallOf: [{kind: genericIssuer, issuer: a, subject: {equal: a, urlPrefix: b}}]", "exactly"),
            ("apiVersion: v1\nallOf: [{kind: genericIssuer, issuer: a, subject: {urlPrefix: a}}]", "is not a URL"),
            ("apiVersion: v1\nallOf: [{kind: certificate, certificate: a}]", "allOf[0].certificate: "),
        ] {
            let error = Verification::parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
