//! From what a person wants of signatures to what is verified, and the module that has them.

use std::collections::BTreeMap;
use std::path::Path;

use proviso_artifacts::{
    Digest, FetchError, Fetcher, Module, ModuleReference, PublicKey, Requirement, Signer, Subject, Wanted,
};

use crate::arguments::Signatures;
use crate::error::Error;

/// A module, and the manifest that has all signatures which are wanted.
#[derive(Debug)]
pub struct Signed {
    pub module: Module,
    /// None where a file says what is wanted: then its module was fetched by the manifest that was verified.
    pub manifest: Option<Digest>,
}

/// Fetches a module if it is signed as it must be.
///
/// # Errors
/// When it is not, or that cannot be found out.
pub async fn fetch(fetcher: Fetcher, module: &str, wanted: &Signatures) -> Result<Signed, Error> {
    if !module.contains("://") {
        return Err(FetchError::Unverifiable(module.to_owned()).into());
    }
    let fetcher = wanted.told_to(fetcher);
    let (reference, manifest) = verify(&fetcher, module, wanted).await?;
    Ok(Signed { module: fetcher.fetch(&reference, Wanted::default()).await?, manifest })
}

/// Verifies a module by the signers that the options name, if any do. The reference that is returned means what was
/// verified, and its manifest.
///
/// # Errors
/// As [`fetch`].
pub async fn verify(
    fetcher: &Fetcher,
    module: &str,
    wanted: &Signatures,
) -> Result<(ModuleReference, Option<Digest>), Error> {
    let reference = ModuleReference::parse(module, Path::new(""))?;
    let requirements = requirements(wanted)?;
    if requirements.is_empty() {
        return Ok((reference, None));
    }
    let ModuleReference::Registry(artifact) = &reference else {
        return Err(FetchError::Unverifiable(module.to_owned()).into());
    };
    let manifest = fetcher.verify(artifact, requirements, &[]).await?;
    // By its digest: a tag may mean another one by now.
    Ok((ModuleReference::Registry(artifact.with(manifest)), Some(manifest)))
}

impl Signatures {
    /// A fetcher that wants what the file says.
    pub fn told_to(&self, fetcher: Fetcher) -> Fetcher {
        fetcher.verifying(self.verification_config_path.clone(), self.trusted_root.clone())
    }
}

/// A requirement for each option that names a signer.
fn requirements(wanted: &Signatures) -> Result<Vec<Requirement>, Error> {
    let mut signers = Vec::new();
    for file in &wanted.keys {
        let pem = std::fs::read_to_string(file).map_err(|error| Error::file(file, error))?;
        let key = PublicKey::from_pem(&pem)
            .map_err(|error| Error::Usage(format!("--verification-key: {} {error}", file.display())))?;
        signers.push(Signer::Key(key));
    }
    if let (Some(email), Some(issuer)) = (&wanted.cert_email, &wanted.cert_oidc_issuer) {
        signers.push(Signer::Identity { issuer: issuer.clone(), subject: Subject::Equal(email.clone()) });
    }
    if let Some(owner) = &wanted.github_owner {
        signers.push(Signer::GithubAction { owner: owner.clone(), repo: wanted.github_repo.clone() });
    }
    let annotations: BTreeMap<_, _> = wanted.annotations.iter().cloned().collect();
    if annotations.len() != wanted.annotations.len() {
        return Err(Error::Usage("--verification-annotation: names a key twice".to_owned()));
    }
    Ok(signers.into_iter().map(|signer| Requirement { signer, annotations: annotations.clone() }).collect())
}
