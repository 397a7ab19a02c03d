//! Verifies the signatures of modules that the arguments require.

use std::collections::BTreeMap;
use std::path::Path;

use proviso_artifacts::{
    Digest, FetchAccess, FetchError, FetchOptions, Fetcher, Module, ModuleReference, PublicKey, Requirement, Signer,
    Subject,
};

use crate::arguments::Signatures;
use crate::error::Error;

/// A module with the required signatures.
#[derive(Debug)]
pub struct Signed {
    pub module: Module,
    /// The digest of the manifest with the signatures; `None` if only a file names the required signatures, because the
    /// fetcher verifies them then.
    pub manifest: Option<Digest>,
}

/// Fetches a module with the required signatures.
///
/// # Errors
/// When the module lacks a required signature, or the verification or the fetch fails.
pub async fn fetch(fetcher: Fetcher, module: &str, wanted: &Signatures) -> Result<Signed, Error> {
    if !module.contains("://") {
        return Err(FetchError::Unverifiable(module.to_owned()).into());
    }
    let fetcher = wanted.configure(fetcher);
    let (reference, manifest) = verify(&fetcher, module, wanted).await?;
    Ok(Signed { module: fetcher.fetch(&reference, FetchOptions::default()).await?, manifest })
}

/// Verifies the signatures of a module by the signers that the options name. Returns a reference to the verified manifest, and
/// its digest; if no option names a signer, the reference without changes and `None`.
///
/// # Errors
/// When the module lacks a required signature, or the verification fails.
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
    let manifest = fetcher.verify(artifact, requirements, FetchAccess::default()).await?;
    // The reference has the digest, because the tag may have moved since.
    Ok((ModuleReference::Registry(artifact.with(manifest)), Some(manifest)))
}

impl Signatures {
    /// Returns a fetcher that requires the signatures of the file.
    pub fn configure(&self, fetcher: Fetcher) -> Fetcher {
        fetcher.with_verification(self.verification_config_path.clone(), self.trusted_root.clone())
    }
}

/// Returns a requirement for each option that names a signer.
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
        return Err(Error::Usage("--verification-annotation: the same key is given twice".to_owned()));
    }
    Ok(signers.into_iter().map(|signer| Requirement { signer, annotations: annotations.clone() }).collect())
}
