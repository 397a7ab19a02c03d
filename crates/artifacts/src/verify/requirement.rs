//! A required signature: its signer and its annotations.

use std::fmt;

use super::certificate::SigningCertificate;
use super::claims::{Annotations, Identity};
use super::found_signature::ExaminedSignature;
use super::key::PublicKey;
use super::subject::{Subject, plain_url};

/// The OIDC issuer of GitHub Actions.
const GITHUB_ISSUER: &str = "https://token.actions.githubusercontent.com";

/// A required signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub signer: Signer,
    /// The annotations that the signature must cover.
    pub annotations: Annotations,
}

/// The required signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signer {
    /// The owner of this key.
    Key(PublicKey),
    /// The identity of a keyless signer: the OIDC issuer, and the subject in the certificate.
    Identity { issuer: String, subject: Subject },
    /// A GitHub Actions workflow in any repository of this owner, or in one repository.
    GithubAction { owner: String, repo: Option<String> },
    /// The owner of the key of this certificate.
    Certificate(SigningCertificate),
}

impl Requirement {
    pub(super) fn is_met_by(&self, signature: &ExaminedSignature<'_>) -> bool {
        let has_signed = match &self.signer {
            Signer::Key(key) => signature.is_signed_with(key),
            Signer::Certificate(certificate) => signature.is_signed_by(certificate),
            Signer::Identity { issuer, subject } => signature
                .identity()
                .is_some_and(|identity| identity.issuer == *issuer && subject.matches(&identity.subject)),
            Signer::GithubAction { owner, repo } => {
                signature.identity().is_some_and(|identity| is_workflow(identity, owner, repo.as_deref()))
            }
        };
        has_signed && self.annotations.iter().all(|(name, value)| signature.annotations().get(name) == Some(value))
    }

    /// Returns true if the verification needs a trusted root.
    pub(super) fn needs_root(&self) -> bool {
        match &self.signer {
            Signer::Key(_) => false,
            Signer::Certificate(certificate) => certificate.require_log,
            Signer::Identity { .. } | Signer::GithubAction { .. } => true,
        }
    }
}

impl Signer {
    /// Returns the number of distinct signers. A key that is listed twice counts once, also with different annotations.
    pub(super) fn count_distinct<'a>(requirements: impl Iterator<Item = &'a Requirement>) -> usize {
        let mut signers: Vec<&Self> = Vec::new();
        for Requirement { signer, .. } in requirements {
            if !signers.iter().any(|known| known.is_same_as(signer)) {
                signers.push(signer);
            }
        }
        signers.len()
    }

    /// Returns true if both name the same signer, such as a key and a certificate with that key.
    fn is_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::GithubAction { owner, repo }, Self::GithubAction { owner: other, repo: of_other }) => {
                let lower = |repo: &Option<String>| repo.as_deref().map(str::to_ascii_lowercase);
                owner.eq_ignore_ascii_case(other) && lower(repo) == lower(of_other)
            }
            _ => match (self.key(), other.key()) {
                (Some(key), Some(other)) => key == other,
                _ => self == other,
            },
        }
    }

    fn key(&self) -> Option<&PublicKey> {
        match self {
            Self::Key(key) => Some(key),
            Self::Certificate(certificate) => Some(certificate.key()),
            Self::Identity { .. } | Self::GithubAction { .. } => None,
        }
    }
}

/// Returns true if the identity is a GitHub Actions workflow in a repository of `owner`. The subject of such a certificate is
/// `https://github.com/<owner>/<repo>/.github/workflows/<file>@<ref>`.
fn is_workflow(identity: &Identity, owner: &str, repo: Option<&str>) -> bool {
    let Some(url) = plain_url(&identity.subject) else { return false };
    let mut parts = url.path().split('/').skip(1);
    let (Some(actual_owner), Some(actual_repo), Some(_)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    // Names of owners and repositories on GitHub are case-insensitive.
    identity.issuer == GITHUB_ISSUER
        && url.origin().ascii_serialization() == "https://github.com"
        && actual_owner.eq_ignore_ascii_case(owner)
        && repo.is_none_or(|repo| actual_repo.eq_ignore_ascii_case(repo))
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.signer {
            Signer::Key(key) => write!(f, "a signature with the key {key}"),
            Signer::Identity { issuer, subject } => {
                write!(f, "a signature of {subject} (keyless, from the issuer {issuer:?})")
            }
            Signer::GithubAction { owner, repo: None } => write!(f, "a signature of a GitHub workflow of {owner:?}"),
            Signer::GithubAction { owner, repo: Some(repo) } => {
                write!(f, "a signature of a GitHub workflow of \"{owner}/{repo}\"")
            }
            Signer::Certificate(certificate) => write!(f, "a signature with the certificate {certificate}"),
        }?;
        let mut join = " with the annotation";
        for (name, value) in &self.annotations {
            write!(f, "{join} {name}={value:?}")?;
            join = " and";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_of_one_signer_are_the_same_signer() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&pair).unwrap().pem();
        let certificate = Signer::Certificate(SigningCertificate::from_pem(&certificate, &[], false).unwrap());
        let key = |pair: &rcgen::KeyPair| Signer::Key(PublicKey::from_pem(&pair.public_key_pem()).unwrap());
        let other = key(&rcgen::KeyPair::generate().unwrap());
        let github = |owner: &str, repo: Option<&str>| Signer::GithubAction {
            owner: owner.to_owned(),
            repo: repo.map(ToOwned::to_owned),
        };
        let name = |name: &str| Signer::Identity { issuer: "i".to_owned(), subject: Subject::Equal(name.to_owned()) };
        for (one, another, is_same) in [
            (key(&pair), key(&pair), true),
            (key(&pair), certificate.clone(), true),
            (key(&pair), other.clone(), false),
            (certificate, other, false),
            (github("Org", Some("Repo")), github("org", Some("repo")), true),
            (github("org", None), github("org", Some("repo")), false),
            (name("a"), name("a"), true),
            (name("a"), name("b"), false),
            (name("a"), key(&pair), false),
        ] {
            assert_eq!((one.is_same_as(&another), another.is_same_as(&one)), (is_same, is_same), "{one:?} {another:?}");
        }
    }

    #[test]
    fn a_workflow_belongs_to_its_owner_and_repository() {
        let workflow = "https://github.com/Org/repo/.github/workflows/release.yml@refs/tags/v1";
        for (issuer, subject, owner, repo, is_met) in [
            (GITHUB_ISSUER, workflow, "org", None, true),
            (GITHUB_ISSUER, workflow, "Org", Some("repo"), true),
            (GITHUB_ISSUER, workflow, "org", Some("other"), false),
            (GITHUB_ISSUER, workflow, "org-evil", None, false),
            ("https://accounts.google.com", workflow, "org", None, false),
            (GITHUB_ISSUER, "https://github.com/org-evil/repo/.github/x", "org", None, false),
            (GITHUB_ISSUER, "https://github.com/evil/../org/repo/.github/x", "evil", None, false),
            (GITHUB_ISSUER, "https://github.com/evil/../org/repo/.github/x", "org", None, false),
            (GITHUB_ISSUER, "https://github.com.evil.example/org/repo/x", "org", None, false),
            (GITHUB_ISSUER, "https://org@github.com/org/repo/x", "org", None, false),
            (GITHUB_ISSUER, "http://github.com/org/repo/x", "org", None, false),
            (GITHUB_ISSUER, "https://github.com/org", "org", None, false),
            (GITHUB_ISSUER, "ann@github.com", "org", None, false),
        ] {
            let identity = Identity { issuer: issuer.to_owned(), subject: subject.to_owned() };
            assert_eq!(is_workflow(&identity, owner, repo), is_met, "{issuer} {subject} {owner} {repo:?}");
        }
    }
}
