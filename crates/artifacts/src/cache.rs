//! The content-addressed cache of modules and compiled modules.
//!
//! The key of a module is its digest. The key of a compiled module is the digest of its source and the key of the engine
//! that compiled it. The cache returns a compiled module only with a valid signature over its bytes, its source and its
//! engine. The signed statement has the size of the code, so that a file of another size is not even read.

mod collect;
mod files;
mod verified;

use std::path::{Path, PathBuf};
use std::{fmt, io};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use proviso_core::Reason;

use crate::digest::Digest;
use crate::module::MAX_MODULE;
use crate::signing::{SigningError, SigningKeys};
use files::Location;

pub use verified::VerificationRecord;

/// The maximum size of a file with a signature, in bytes.
const MAX_SIGNATURE: u64 = 1024;

/// The cache of modules in a folder.
///
/// The folder has the module in `modules/<digest>.wasm`, its verification record in `modules/<digest>.verified`, and each
/// compiled form in `compiled/<digest>/<engine key>.cwasm` with the signature in `<engine key>.sig`.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    keys: SigningKeys,
    may_sign: MaySign,
}

/// Decides whether this process may sign now.
struct MaySign(Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for MaySign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaySign")
    }
}

/// The error of an access to the cache. Every entry of the cache can be created again.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("the cache at {path} cannot be read or written: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("the signing key of the cache at {path}: {error}")]
    Key { path: PathBuf, error: SigningError },
    /// The file is damaged, truncated, replaced by another file, or signed with another key.
    #[error("{0} does not carry a valid signature for its name and content")]
    Forged(PathBuf),
    #[error("{path} has {size} bytes, more than the {max} bytes that such a file of the cache has", path = .path.display())]
    TooLarge { path: PathBuf, size: u64, max: u64 },
    #[error("{0:?} is not an engine key: use letters, digits and '-' only")]
    EngineKey(String),
    #[error("the cache at {path} does not answer: its disk is stalled", path = .0.display())]
    Stalled(PathBuf),
    #[error("the task that uses the cache stopped: {0}")]
    Stopped(String),
}

impl CacheError {
    /// Returns the reason for logs, metrics and conditions.
    #[must_use]
    pub fn reason(&self) -> Reason {
        Reason::CACHE_ERROR
    }
}

impl Cache {
    /// Opens the cache in `folder` with its own signing key. Creates the folder and the key if they do not exist.
    ///
    /// # Errors
    /// Returns an error if the folder or the signing key cannot be read or created.
    pub fn open(folder: &Path) -> Result<Self, CacheError> {
        for part in ["modules", "compiled"] {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).map_err(|error| CacheError::Io { path, error })?;
        }
        let path = folder.join("signing.key");
        let keys = SigningKeys::load_or_create(&path).map_err(|error| CacheError::Key { path, error })?;
        Ok(Self::new(folder, keys))
    }

    /// Opens a cache that several replicas share, with the signing keys of all of them. Does not access the folder: its
    /// volume may be unavailable now and come back.
    #[must_use]
    pub fn open_shared(folder: &Path, keys: SigningKeys) -> Self {
        Self::new(folder, keys)
    }

    fn new(folder: &Path, keys: SigningKeys) -> Self {
        Self { folder: folder.to_owned(), keys, may_sign: MaySign(Box::new(|| true)) }
    }

    /// Returns this cache with the condition under which it signs. A replica of a policy server signs while it leads.
    #[must_use]
    pub fn signing_while(self, may_sign: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { may_sign: MaySign(Box::new(may_sign)), ..self }
    }

    /// Returns true if this process may sign now.
    #[must_use]
    pub fn may_sign(&self) -> bool {
        (self.may_sign.0)()
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the module with this digest; `None` if the cache does not have it.
    ///
    /// # Errors
    /// Returns [`CacheError::Io`] if the file cannot be read, [`CacheError::TooLarge`] if it is larger than [`MAX_MODULE`], and
    /// [`CacheError::Forged`] if it has another digest.
    pub fn module(&self, digest: &Digest) -> Result<Option<Bytes>, CacheError> {
        let path = self.module_path(digest);
        match self.read(&path, MAX_MODULE)? {
            Some(bytes) if Digest::of(&bytes) == *digest => Ok(Some(bytes)),
            Some(_) => Err(CacheError::Forged(path)),
            None => Ok(None),
        }
    }

    /// Stores a module. Its name proves its content, so it needs no signature.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn put_module(&self, digest: &Digest, module: &[u8]) -> Result<(), CacheError> {
        self.write(&self.module_path(digest), module)
    }

    /// Returns the module `source` as the engine with `engine_key` compiled it; `None` if the cache does not have it.
    ///
    /// The signature is verified over the returned bytes. Callers must load these bytes and not read the file again.
    ///
    /// # Errors
    /// Returns [`CacheError::Io`] if a file cannot be read, and [`CacheError::Forged`] or [`CacheError::TooLarge`] if the signature
    /// does not match the bytes, the source and the engine. A file of another size than the signed one is not read.
    pub fn compiled(&self, source: &Digest, engine_key: &str) -> Result<Option<Bytes>, CacheError> {
        let path = self.compiled_path(source, engine_key)?;
        let Some(signed) = self.signed_code(&path, source, engine_key)? else { return Ok(None) };
        match self.read(&path, signed.size)? {
            Some(code) if SignedCode::of(&code) == signed => Ok(Some(code)),
            Some(_) => Err(CacheError::Forged(path)),
            None => Ok(None),
        }
    }

    /// Returns true if the cache has the compiled module with a valid signature, as far as the size of its code shows. Does not read
    /// the code.
    ///
    /// # Errors
    /// Returns [`CacheError::Io`] if a file cannot be read.
    pub fn has_compiled(&self, source: &Digest, engine_key: &str) -> Result<bool, CacheError> {
        let path = self.compiled_path(source, engine_key)?;
        let size = self.signed_code(&path, source, engine_key).and_then(|signed| {
            let Some(SignedCode { size, .. }) = signed else { return Ok(false) };
            Ok(again_if_stale(|| Location::new(&self.folder, &path).size(size))? == Some(size))
        });
        match size {
            Err(CacheError::Forged(_) | CacheError::TooLarge { .. }) => Ok(false),
            size => size,
        }
    }

    /// Signs and stores the module `source` as the engine with `engine_key` compiled it. Returns false, and stores nothing, if this
    /// process may not sign now.
    ///
    /// # Errors
    /// Returns [`CacheError::EngineKey`] if the engine key is malformed, and [`CacheError::Io`] if a file cannot be written.
    pub fn put_compiled(&self, source: &Digest, engine_key: &str, code: &[u8]) -> Result<bool, CacheError> {
        let path = self.compiled_path(source, engine_key)?;
        if !self.may_sign() {
            return Ok(false);
        }
        let signed = SignedCode::of(code);
        let signature = STANDARD.encode(self.keys.sign(&signed.statement(source, engine_key)));
        // A reader between the two writes finds a signature that does not match, refuses the entry and compiles the module.
        self.write(&path, code)?;
        let text = format!("{}\n{}\n{signature}\n", signed.digest, signed.size);
        self.write(&path.with_extension("sig"), text.as_bytes())?;
        Ok(true)
    }

    /// Removes the signature of a compiled module, so that the leader stores it again.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed.
    pub fn remove_compiled(&self, source: &Digest, engine_key: &str) -> Result<(), CacheError> {
        let path = self.compiled_path(source, engine_key)?.with_extension("sig");
        Location::new(&self.folder, &path).remove()
    }

    /// Returns what the signature of the code at `path` says; `None` if there is no signature.
    fn signed_code(&self, path: &Path, source: &Digest, engine_key: &str) -> Result<Option<SignedCode>, CacheError> {
        let Some(text) = self.read(&path.with_extension("sig"), MAX_SIGNATURE)? else { return Ok(None) };
        let signed = std::str::from_utf8(&text).ok().and_then(|text| {
            let mut lines = text.lines();
            let signed = SignedCode { digest: lines.next()?.parse().ok()?, size: lines.next()?.parse().ok()? };
            let signature = STANDARD.decode(lines.next()?).ok()?;
            self.keys.verify(&signed.statement(source, engine_key), &signature).then_some(signed)
        });
        signed.map(Some).ok_or_else(|| CacheError::Forged(path.to_owned()))
    }

    fn read(&self, path: &Path, max: u64) -> Result<Option<Bytes>, CacheError> {
        again_if_stale(|| Location::new(&self.folder, path).read(max))
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), CacheError> {
        again_if_stale(|| Location::new(&self.folder, path).write(content))
    }

    fn module_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join("modules").join(format!("{}.wasm", digest.hex()))
    }

    fn compiled_path(&self, source: &Digest, engine_key: &str) -> Result<PathBuf, CacheError> {
        if engine_key.is_empty() || !engine_key.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
            return Err(CacheError::EngineKey(engine_key.to_owned()));
        }
        Ok(self.folder.join("compiled").join(source.hex()).join(format!("{engine_key}.cwasm")))
    }
}

/// The signed facts about compiled code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SignedCode {
    digest: Digest,
    /// The size of the code in bytes.
    size: u64,
}

impl SignedCode {
    fn of(code: &[u8]) -> Self {
        Self { digest: Digest::of(code), size: code.len() as u64 }
    }

    /// Returns the bytes to sign. No part contains a line break, so that two different statements never have the same bytes.
    fn statement(self, source: &Digest, engine_key: &str) -> Vec<u8> {
        let Self { digest, size } = self;
        format!("proviso compiled module v2\n{digest}\n{size}\n{source}\n{engine_key}").into_bytes()
    }
}

/// Repeats an access once if a file or folder is stale (ESTALE): another replica has replaced it on a network volume since this
/// replica opened it. Another attempt opens the new one.
fn again_if_stale<T>(access: impl Fn() -> Result<T, CacheError>) -> Result<T, CacheError> {
    match access() {
        Err(CacheError::Io { error, .. }) if error.kind() == io::ErrorKind::StaleNetworkFileHandle => access(),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: &str = "48-0-8-abc";

    fn cache() -> (tempfile::TempDir, Cache, Digest) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let source = Digest::of(b"module");
        cache.put_module(&source, b"module").unwrap();
        cache.put_compiled(&source, ENGINE, b"native code").unwrap();
        (folder, cache, source)
    }

    #[test]
    fn modules_and_compiled_modules_survive_a_restart() {
        let (folder, cache, source) = cache();
        drop(cache);
        let cache = Cache::open(folder.path()).unwrap();
        assert_eq!(cache.module(&source).unwrap().unwrap(), "module");
        assert_eq!(cache.compiled(&source, ENGINE).unwrap().unwrap(), "native code");
        assert_eq!(cache.compiled(&source, "another-engine").unwrap(), None);
        assert_eq!(cache.module(&Digest::of(b"other")).unwrap(), None);
    }

    #[test]
    fn a_stale_file_is_accessed_once_more() {
        use io::ErrorKind::{PermissionDenied, StaleNetworkFileHandle};
        for (errors, expected) in [
            (vec![], (1, true)),
            (vec![StaleNetworkFileHandle], (2, true)),
            (vec![StaleNetworkFileHandle; 2], (2, false)),
            (vec![PermissionDenied], (1, false)),
        ] {
            let accesses = std::cell::Cell::new(0);
            let result = again_if_stale(|| {
                let error = errors.get(accesses.replace(accesses.get() + 1));
                error.map_or(Ok(()), |error| Err(CacheError::Io { path: "a".into(), error: (*error).into() }))
            });
            assert_eq!((accesses.get(), result.is_ok()), expected, "{errors:?}");
            assert!(result.err().is_none_or(|error| error.reason() == Reason::CACHE_ERROR), "{errors:?}");
        }
        // The number is that of Linux.
        assert_eq!(io::Error::from_raw_os_error(116).kind(), StaleNetworkFileHandle);
    }

    #[test]
    fn a_tampered_compiled_module_is_refused() {
        let (_folder, cache, source) = cache();
        let path = cache.compiled_path(&source, ENGINE).unwrap();
        let other = Digest::of(b"other module");
        assert!(cache.put_compiled(&other, ENGINE, b"other native code").unwrap());
        let (other_code, other_signature) = {
            let path = cache.compiled_path(&other, ENGINE).unwrap();
            (std::fs::read(&path).unwrap(), std::fs::read(path.with_extension("sig")).unwrap())
        };
        let signature = std::fs::read(path.with_extension("sig")).unwrap();
        for (code, signature) in [
            (b"Native code".as_slice(), &signature),
            (b"native cod", &signature),
            (b"", &signature),
            (b"native code and more", &signature),
            (b"native code", &vec![]),
            (b"native code", &other_signature),
            // The compiled form of another module with its own valid signature.
            (&other_code, &other_signature),
        ] {
            std::fs::write(&path, code).unwrap();
            std::fs::write(path.with_extension("sig"), signature).unwrap();
            let error = cache.compiled(&source, ENGINE).unwrap_err();
            assert!(matches!(error, CacheError::Forged(_) | CacheError::TooLarge { .. }), "{code:?}: {error}");
        }
        cache.put_compiled(&source, ENGINE, b"native code").unwrap();
        assert!(cache.compiled(&source, ENGINE).unwrap().is_some(), "a refused entry can be replaced");
    }

    #[test]
    fn a_compiled_module_of_another_engine_is_refused() {
        let (_folder, cache, source) = cache();
        let path = cache.compiled_path(&source, ENGINE).unwrap();
        let renamed = cache.compiled_path(&source, "48-0-9-abc").unwrap();
        for extension in ["cwasm", "sig"] {
            std::fs::copy(path.with_extension(extension), renamed.with_extension(extension)).unwrap();
        }
        assert!(matches!(cache.compiled(&source, "48-0-9-abc"), Err(CacheError::Forged(_))));
    }

    #[test]
    fn compiled_modules_of_another_signing_key_are_refused() {
        let (folder, cache, source) = cache();
        drop(cache);
        std::fs::remove_file(folder.path().join("signing.key")).unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        assert!(matches!(cache.compiled(&source, ENGINE), Err(CacheError::Forged(_))));
    }

    #[test]
    fn symlinks_and_engine_keys_outside_the_folder_are_refused() {
        let (folder, cache, source) = cache();
        let outside = folder.path().join("outside");
        std::fs::write(&outside, b"module").unwrap();
        std::fs::remove_file(cache.module_path(&source)).unwrap();
        std::os::unix::fs::symlink(&outside, cache.module_path(&source)).unwrap();
        assert!(matches!(cache.module(&source), Err(CacheError::Forged(_))));
        for key in ["", "..", "a/b", "../../x", "a.b"] {
            assert!(matches!(cache.compiled(&source, key), Err(CacheError::EngineKey(_))), "{key:?}");
        }
    }

    #[test]
    fn a_replica_that_does_not_lead_signs_nothing() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};
        let (folder, leader, source) = cache();
        let leads = Arc::new(AtomicBool::new(false));
        let other = Cache::open(folder.path()).unwrap();
        let other = other.signing_while({
            let leads = Arc::clone(&leads);
            move || leads.load(Ordering::Relaxed)
        });
        assert!(!other.put_compiled(&source, "other-engine", b"code").unwrap());
        let record = VerificationRecord { manifest: source, against: source };
        assert!(!other.put_verified(&source, record).unwrap());
        assert!(!leader.has_compiled(&source, "other-engine").unwrap() && leader.verified(&source).unwrap().is_none());
        assert!(!folder.path().join("compiled").join(source.hex()).join("other-engine.cwasm").exists());
        // The replica verifies what the leader has signed, and can ask for it again.
        assert!(other.has_compiled(&source, ENGINE).unwrap() && other.compiled(&source, ENGINE).unwrap().is_some());
        other.remove_compiled(&source, ENGINE).unwrap();
        assert!(!other.has_compiled(&source, ENGINE).unwrap());
        leads.store(true, Ordering::Relaxed);
        assert!(other.put_compiled(&source, ENGINE, b"code").unwrap() && other.put_verified(&source, record).unwrap());
        assert_eq!(leader.compiled(&source, ENGINE).unwrap().unwrap(), "code");
    }

    #[test]
    fn replicas_with_the_same_signing_keys_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let [shared, other_key] = ["shared.key", "other.key"].map(|name| {
            let path = folder.path().join(name);
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
            std::fs::write(&path, key.serialize_pem()).unwrap();
            path
        });
        // The folder does not exist yet.
        let volume = folder.path().join("volume");
        let open = |key: &Path| Cache::open_shared(&volume, SigningKeys::mounted(key).unwrap());
        let (one, other, unrelated) = (open(&shared), open(&shared), open(&other_key));
        let source = Digest::of(b"module");
        assert_eq!((one.module(&source).unwrap(), one.compiled(&source, ENGINE).unwrap()), (None, None));
        one.put_module(&source, b"module").unwrap();
        one.put_compiled(&source, ENGINE, b"native code").unwrap();
        assert_eq!(other.module(&source).unwrap().unwrap(), "module");
        assert_eq!(other.compiled(&source, ENGINE).unwrap().unwrap(), "native code");
        assert!(matches!(unrelated.compiled(&source, ENGINE), Err(CacheError::Forged(_))));
        assert!(!volume.join("signing.key").exists(), "the shared folder holds no signing key");

        std::fs::remove_dir_all(&volume).unwrap();
        std::fs::write(&volume, "no folder").unwrap();
        let error = one.put_module(&source, b"module").unwrap_err();
        assert!(matches!(error, CacheError::Io { .. }) && error.reason() == Reason::CACHE_ERROR);
    }

    #[test]
    fn only_the_owner_can_read_the_signing_key() {
        use std::os::unix::fs::PermissionsExt as _;
        let (folder, _cache, _) = cache();
        let mode = std::fs::metadata(folder.path().join("signing.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(folder.path().join("signing.key"), b"no key").unwrap();
        assert!(matches!(Cache::open(folder.path()), Err(CacheError::Key { .. })));
    }
}
