//! The signature that a compiled module must carry before it is loaded: loading one is loading native code.

use std::io;
use std::path::Path;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::file::write_atomically;

/// An Ed25519 key pair, kept in a file that only its owner can read.
#[derive(Debug)]
pub struct SigningKey(Ed25519KeyPair);

/// A signing key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("the signing key cannot be read or written: {0}")]
    File(#[from] io::Error),
    #[error(
        "the file holds no Ed25519 key in PKCS #8: remove it to have a new one made; all modules are then compiled again"
    )]
    Malformed,
    #[error("the system's random numbers failed")]
    Random,
}

impl SigningKey {
    /// Reads the key at `path`, or makes one there.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds something else.
    pub fn load_or_create(path: &Path) -> Result<Self, SigningError> {
        let pkcs8 = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = Ed25519KeyPair::generate().map_err(|_| SigningError::Random)?;
                let pkcs8 = key.to_pkcs8().map_err(|_| SigningError::Random)?.as_ref().to_vec();
                write_atomically(path, &pkcs8)?;
                pkcs8
            }
            Err(error) => return Err(error.into()),
        };
        Ed25519KeyPair::from_pkcs8(&pkcs8).map(Self).map_err(|_| SigningError::Malformed)
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }

    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0.public_key()).verify(message, signature).is_ok()
    }
}
