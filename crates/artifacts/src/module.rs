//! The bytes of a module and their digest.

use std::io::{self, Read as _};
use std::path::Path;

use bytes::Bytes;

use crate::digest::Digest;
use crate::fetch::{FetchError, MemoryPermit};

/// The maximum size of a module, in bytes.
pub const MAX_MODULE: u64 = 64 * 1024 * 1024;

/// A fetched module.
#[derive(Clone, Debug)]
pub struct Module {
    pub digest: Digest,
    pub bytes: Bytes,
    /// The memory that the bytes hold; `None` for bytes from this machine.
    _permit: Option<MemoryPermit>,
}

impl Module {
    /// Creates a module. The caller guarantees that `digest` is the digest of `bytes`.
    #[must_use]
    pub fn new(digest: Digest, bytes: Bytes) -> Self {
        Self { digest, bytes, _permit: None }
    }

    /// Creates a module from the bytes of a server, which hold a part of the memory budget.
    pub(crate) fn fetched(bytes: Bytes, permit: MemoryPermit) -> Self {
        Self { _permit: Some(permit), ..Self::new(Digest::of(&bytes), bytes) }
    }

    /// Reads the module from a file. Blocks on the disk.
    ///
    /// # Errors
    /// Returns [`FetchError::File`] if the file cannot be read or is not a regular file, and [`FetchError::TooLarge`] if it is
    /// larger than [`MAX_MODULE`].
    pub fn read(path: &Path) -> Result<Self, FetchError> {
        let failed = |error| FetchError::File { path: path.to_owned(), error };
        // An open of a named pipe would block until another program writes to it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_MODULE + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_MODULE {
            return Err(FetchError::TooLarge { what: path.display().to_string(), limit: MAX_MODULE });
        }
        Ok(Self::new(Digest::of(&bytes), bytes.into()))
    }

    /// Returns the module if it has the digest `wanted`, or if `wanted` is `None`.
    ///
    /// # Errors
    /// Returns [`FetchError::Digest`] if the module has another digest.
    pub fn expect(self, wanted: Option<&Digest>) -> Result<Self, FetchError> {
        match wanted {
            Some(wanted) if *wanted != self.digest => Err(FetchError::Digest { actual: self.digest, wanted: *wanted }),
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use proviso_core::Reason;

    use super::*;

    #[test]
    fn a_module_with_another_digest_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        std::fs::write(&path, b"module").unwrap();
        let module = Module::read(&path).unwrap();
        assert_eq!((module.digest, &module.bytes[..]), (Digest::of(b"module"), &b"module"[..]));
        assert!(module.clone().expect(None).is_ok() && module.clone().expect(Some(&Digest::of(b"module"))).is_ok());
        let error = module.expect(Some(&Digest::of(b"other"))).unwrap_err();
        assert_eq!((error.reason(), error.is_transient()), (Reason::VERIFICATION_ERROR, false));
        let missing = Module::read(&folder.path().join("b.wasm")).unwrap_err();
        assert_eq!((missing.reason(), missing.is_transient()), (Reason::PULL_ERROR, true));
    }

    #[test]
    fn a_file_larger_than_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        std::fs::File::create(&path).unwrap().set_len(MAX_MODULE * 1000).unwrap();
        assert!(matches!(Module::read(&path), Err(FetchError::TooLarge { .. })));
    }
}
