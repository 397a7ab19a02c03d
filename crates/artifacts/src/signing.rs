//! Signatures of compiled modules. A compiled module is native code, so it is loaded only with a valid signature.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

use crate::file::write_atomically;

/// Ed25519 signing keys. The first key signs; each key verifies.
#[derive(Debug)]
pub struct SigningKeys(Source);

#[derive(Debug)]
enum Source {
    /// The key that this process created or read at its start. It never changes.
    Own(KeyRing),
    /// The keys of a file that may change, such as a mounted Secret.
    Mounted { path: PathBuf, loaded: Mutex<LoadedKeys> },
}

/// The last content and the last valid keys of a file that may change.
#[derive(Debug)]
struct LoadedKeys {
    /// The content as it was last read, valid or not. The same content is not parsed again; `None` if it cannot be read.
    content: Option<Vec<u8>>,
    /// The keys of the last valid content.
    ring: Arc<KeyRing>,
}

/// A non-empty list of keys.
#[derive(Debug)]
struct KeyRing(Vec<Ed25519KeyPair>);

/// The error of signing keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("the signing key cannot be read or written: {0}")]
    File(#[from] io::Error),
    #[error(
        "the file holds no Ed25519 key in PKCS #8: remove the file to get a new key; all modules are then compiled again"
    )]
    Malformed,
    #[error("{0}: the file must hold one or more Ed25519 keys, in PKCS #8 and PEM")]
    Pem(String),
    #[error("the random number generator of the system failed")]
    Random,
}

impl SigningKeys {
    /// Reads the key at `path`. Creates a key if the file does not exist.
    ///
    /// # Errors
    /// Returns [`SigningError::File`] if the file cannot be read or written, and [`SigningError::Malformed`] if it does not
    /// hold an Ed25519 key.
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
        let key = Ed25519KeyPair::from_pkcs8(&pkcs8).map_err(|_| SigningError::Malformed)?;
        Ok(Self(Source::Own(KeyRing(vec![key]))))
    }

    /// Reads the PEM keys of a file that another program writes. Each use of the keys reads the file again; while its
    /// content is invalid, the last valid keys stay.
    ///
    /// # Errors
    /// Returns [`SigningError::File`] if the file cannot be read, and [`SigningError::Pem`] if it does not hold Ed25519 keys.
    pub fn mounted(path: &Path) -> Result<Self, SigningError> {
        let content = std::fs::read(path)?;
        let ring = Arc::new(KeyRing::parse(&content)?);
        let loaded = Mutex::new(LoadedKeys { content: Some(content), ring });
        Ok(Self(Source::Mounted { path: path.to_owned(), loaded }))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.with_keys(|ring| ring.sign(message))
    }

    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        self.with_keys(|ring| ring.verify(message, signature))
    }

    fn with_keys<T>(&self, work: impl FnOnce(&KeyRing) -> T) -> T {
        match &self.0 {
            Source::Own(ring) => work(ring),
            Source::Mounted { path, loaded } => {
                let ring = {
                    let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
                    loaded.reload(path);
                    Arc::clone(&loaded.ring)
                };
                work(&ring)
            }
        }
    }
}

impl LoadedKeys {
    /// Reads the file. Replaces the keys if the content changed and is valid.
    fn reload(&mut self, path: &Path) {
        let read = std::fs::read(path);
        let content = read.as_ref().ok();
        if content == self.content.as_ref() {
            return;
        }
        self.content = content.cloned();
        match read.map_err(SigningError::from).and_then(|content| KeyRing::parse(&content)) {
            Ok(ring) => {
                tracing::info!(path = %path.display(), keys = ring.0.len(), "signing keys replaced");
                self.ring = Arc::new(ring);
            }
            Err(error) => tracing::warn!(path = %path.display(), %error, "new signing keys refused, the old ones stay"),
        }
    }
}

impl KeyRing {
    fn parse(pem: &[u8]) -> Result<Self, SigningError> {
        let keys = PrivatePkcs8KeyDer::pem_slice_iter(pem).map(|key| {
            let key = key.map_err(|error| SigningError::Pem(error.to_string()))?;
            Ed25519KeyPair::from_pkcs8(key.secret_pkcs8_der()).map_err(|error| {
                SigningError::Pem(format!("a key in the file has another type or is damaged ({error})"))
            })
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(SigningError::Pem("the file holds no key".to_owned())) } else { Ok(Self(keys)) }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.first().map(|key| key.sign(message).as_ref().to_vec()).unwrap_or_default()
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let verifies = |key: &Ed25519KeyPair| {
            UnparsedPublicKey::new(&ED25519, key.public_key()).verify(message, signature).is_ok()
        };
        self.0.iter().any(verifies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem() -> String {
        rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem()
    }

    #[test]
    fn keys_rotate_with_an_overlap_and_without_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.key");
        let [old, new] = [pem(), pem()];
        std::fs::write(&path, &old).unwrap();
        let keys = SigningKeys::mounted(&path).unwrap();
        let by_old = keys.sign(b"m");
        std::fs::write(&path, [&*new, &*old].concat()).unwrap();
        assert!(keys.verify(b"m", &by_old), "the old key still verifies");
        let by_new = keys.sign(b"m");
        assert!(by_new != by_old && keys.verify(b"m", &by_new), "the first key signs");
        std::fs::write(&path, &new).unwrap();
        assert!(keys.verify(b"m", &by_new) && !keys.verify(b"m", &by_old));
        assert!(!keys.verify(b"n", &by_new));
    }

    #[test]
    fn an_invalid_file_leaves_the_keys_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.key");
        let good = pem();
        std::fs::write(&path, &good).unwrap();
        let keys = SigningKeys::mounted(&path).unwrap();
        let signature = keys.sign(b"m");
        let other_kind = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let half = &good[..good.len() / 2];
        for broken in ["", "no key", &other_kind, half, &format!("{good}{other_kind}")] {
            std::fs::write(&path, broken).unwrap();
            assert_eq!(keys.sign(b"m"), signature, "{broken}");
            assert!(SigningKeys::mounted(&path).is_err(), "{broken}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(keys.sign(b"m"), signature);
        std::fs::write(&path, pem()).unwrap();
        assert_ne!(keys.sign(b"m"), signature);
    }
}
