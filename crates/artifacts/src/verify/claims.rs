//! The claims of a signature: the identity of its signer, and the annotations that are signed with the digest of the image.

use std::collections::BTreeMap;

use sigstore_verify::VerificationResult;

/// The annotations of a signature, by their names.
pub(super) type Annotations = BTreeMap<String, String>;

/// The identity of a keyless signer, from the certificate of the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub issuer: String,
    pub subject: String,
}

/// Returns the identity in a certificate that sigstore verified, or the reason why the verification does not prove it.
pub(super) fn identity_of(verified: Result<VerificationResult, sigstore_verify::Error>) -> Result<Identity, String> {
    let verified = verified.map_err(|error| error.to_string())?;
    // The defaults of the library may change: without these checks an unverified certificate would name a signer.
    if !verified.certificate_verified() || !verified.tlog_verified() || verified.verified_timestamps().is_empty() {
        return Err("its certificate chain, its time or its log entry was not verified".to_owned());
    }
    match (verified.issuer(), verified.identity()) {
        (Some(issuer), Some(subject)) => {
            Ok(Identity { issuer: issuer.to_owned(), subject: subject.as_str().to_owned() })
        }
        _ => Err("it names no issuer or no subject".to_owned()),
    }
}
