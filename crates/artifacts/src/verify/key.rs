//! Public keys of cosign: ECDSA (P-256, P-384), Ed25519 and RSA. Signatures use SHA-256 unless the key type defines another
//! hash.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sigstore_verify::crypto::{KeyAlgorithm, VerificationKey};
use sigstore_verify::types::{DerPublicKey, HashAlgorithm, SignatureBytes};

use crate::digest::Digest;

/// The minimum size of an RSA key, in bits.
const MIN_RSA: usize = 2048;

/// A key that signatures are verified with.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(DerPublicKey);

/// The error of a text that is not a supported key or certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not a public key or certificate: {0}: give PEM with ECDSA P-256 or P-384, Ed25519, or RSA of at least 2048 bits"
)]
pub struct KeyError(String);

impl KeyError {
    pub(super) fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl PublicKey {
    /// Parses a key in PEM.
    ///
    /// # Errors
    /// Returns an error if the text is not a key, or if its type or size is not supported.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let key = DerPublicKey::from_pem(pem.trim()).map_err(KeyError::of)?;
        Self::from_der(key)
    }

    pub(super) fn from_der(key: DerPublicKey) -> Result<Self, KeyError> {
        let algorithm = KeyAlgorithm::from_spki(&key).map_err(KeyError::of)?;
        let known = [KeyAlgorithm::EcdsaP256, KeyAlgorithm::EcdsaP384, KeyAlgorithm::Ed25519, KeyAlgorithm::Rsa];
        if !known.contains(&algorithm) {
            return Err(KeyError(format!("{algorithm:?} is not supported")));
        }
        // The encoding of an RSA key is only a few bytes longer than its modulus.
        if algorithm == KeyAlgorithm::Rsa && key.as_bytes().len() * 8 < MIN_RSA {
            return Err(KeyError(format!("it is shorter than {MIN_RSA} bits")));
        }
        Ok(Self(key))
    }

    /// Returns true if `signature` is a signature of `message` with this key.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let signature = SignatureBytes::from_bytes(signature);
        let Ok(algorithm) = KeyAlgorithm::from_spki(&self.0) else { return false };
        // Cosign uses SHA-256 for every curve; bundles use the hash of the curve.
        let cosign_scheme = algorithm.resolve_signing_scheme(HashAlgorithm::Sha2256);
        let schemes = cosign_scheme.into_iter().chain([algorithm.default_signing_scheme()]);
        schemes
            .filter_map(|scheme| VerificationKey::from_spki_with_scheme(&self.0, scheme).ok())
            .any(|key| key.verify(message, &signature).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The digest is the output of `openssl pkey -pubin -outform DER | sha256sum`.
        f.write_str(&Digest::of(self.0.as_bytes()).to_string())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// Decodes Base64; `None` if the text is not Base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{KeyPair, SigningKey as _};

    /// An RSA key of 1024 bits.
    const WEAK: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCpguPl4wtI+7psVapTUWkOuQh6
SpWXx4Qe1H72fv/VC8/O6gzMNQ/IuA1vj7375nTtNfKTZWhaMeo99zTDLuFQW0uC
VU5zUyusLXTY6gv6D6/B+DjmosyRwiHcn7QjScsiBSXWpfJ/zEqnNgmkcWHoDIMy
Eu0CcMqsb2pY6T2CjQIDAQAB
-----END PUBLIC KEY-----";

    #[test]
    fn a_key_of_each_supported_type_verifies_its_own_signatures() {
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
    fn invalid_and_weak_keys_are_refused() {
        let private = KeyPair::generate().unwrap().serialize_pem();
        let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap().public_key_pem();
        for text in ["", "key", private.as_str(), p521.as_str(), WEAK] {
            assert!(PublicKey::from_pem(text).is_err(), "{text}");
        }
    }
}
