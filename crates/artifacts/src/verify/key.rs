//! Public keys as cosign has them: ECDSA (P-256, P-384), Ed25519, RSA. Signatures are over SHA-256 unless the kind of
//! key says otherwise.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sigstore_verify::crypto::{KeyAlgorithm, VerificationKey};
use sigstore_verify::types::{DerPublicKey, HashAlgorithm, SignatureBytes};

use crate::digest::Digest;

/// The smallest RSA key that is taken, in bits.
const MIN_RSA: usize = 2048;

/// A key that signatures are verified with.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(DerPublicKey);

/// A text that is no key of a kind that is understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is no public key or certificate: {0}: give one in PEM, of the kind ECDSA P-256 or P-384, Ed25519, or RSA from 2048 bits on"
)]
pub struct KeyError(String);

impl KeyError {
    pub(super) fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl PublicKey {
    /// Reads a key in PEM.
    ///
    /// # Errors
    /// When it is none, or of a kind that is not understood.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let key = DerPublicKey::from_pem(pem.trim()).map_err(KeyError::of)?;
        Self::from_der(key)
    }

    pub(super) fn from_der(key: DerPublicKey) -> Result<Self, KeyError> {
        let algorithm = KeyAlgorithm::from_spki(&key).map_err(KeyError::of)?;
        let known = [KeyAlgorithm::EcdsaP256, KeyAlgorithm::EcdsaP384, KeyAlgorithm::Ed25519, KeyAlgorithm::Rsa];
        if !known.contains(&algorithm) {
            return Err(KeyError(format!("{algorithm:?} is not understood")));
        }
        // An RSA key is hardly longer than its modulus.
        if algorithm == KeyAlgorithm::Rsa && key.as_bytes().len() * 8 < MIN_RSA {
            return Err(KeyError(format!("it is shorter than {MIN_RSA} bits")));
        }
        Ok(Self(key))
    }

    /// Whether this is the signature of these bytes.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let signature = SignatureBytes::from_bytes(signature);
        let Ok(algorithm) = KeyAlgorithm::from_spki(&self.0) else { return false };
        // Cosign hashes with SHA-256 whatever the curve is; bundles with what goes with the curve.
        let of_cosign = algorithm.resolve_signing_scheme(HashAlgorithm::Sha2256);
        let schemes = of_cosign.into_iter().chain([algorithm.default_signing_scheme()]);
        schemes
            .filter_map(|scheme| VerificationKey::from_spki_with_scheme(&self.0, scheme).ok())
            .any(|key| key.verify(message, &signature).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As `openssl pkey -pubin -outform DER | sha256sum` has it.
        f.write_str(&Digest::of(self.0.as_bytes()).to_string())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// Bytes that somebody wrote in Base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{KeyPair, SigningKey as _};

    /// RSA of 1024 bits.
    const WEAK: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCpguPl4wtI+7psVapTUWkOuQh6
SpWXx4Qe1H72fv/VC8/O6gzMNQ/IuA1vj7375nTtNfKTZWhaMeo99zTDLuFQW0uC
VU5zUyusLXTY6gv6D6/B+DjmosyRwiHcn7QjScsiBSXWpfJ/zEqnNgmkcWHoDIMy
Eu0CcMqsb2pY6T2CjQIDAQAB
-----END PUBLIC KEY-----";

    #[test]
    fn a_key_of_each_kind_that_cosign_has_verifies_its_own_signatures() {
        for kind in [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ED25519,
            &rcgen::PKCS_RSA_SHA256,
        ] {
            let pair = KeyPair::generate_for(kind).unwrap();
            let key = PublicKey::from_pem(&pair.public_key_pem()).unwrap();
            let signature = pair.sign(b"message").unwrap();
            assert!(key.has_signed(b"message", &signature), "{kind:?}");
            assert!(!key.has_signed(b"massage", &signature) && !key.has_signed(b"message", &signature[1..]));
            let other = KeyPair::generate_for(kind).unwrap();
            assert!(!PublicKey::from_pem(&other.public_key_pem()).unwrap().has_signed(b"message", &signature));
        }
    }

    #[test]
    fn what_is_no_key_or_too_weak_a_one_is_refused() {
        let private = KeyPair::generate().unwrap().serialize_pem();
        let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap().public_key_pem();
        for text in ["", "key", private.as_str(), p521.as_str(), WEAK] {
            assert!(PublicKey::from_pem(text).is_err(), "{text}");
        }
    }
}
