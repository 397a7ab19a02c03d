//! A module's bytes, under the digest that tells them from all others.

use std::io::{self, Read as _};
use std::path::Path;

use bytes::Bytes;

use crate::digest::Digest;
use crate::fetch::FetchError;
use crate::fetch::Room;

/// The largest module, in bytes.
pub const MAX_MODULE: u64 = 64 * 1024 * 1024;

/// A module as it was fetched.
#[derive(Clone, Debug)]
pub struct Module {
    pub digest: Digest,
    pub bytes: Bytes,
    /// Taken by the bytes for as long as they are here; none where they came from this machine.
    _room: Option<Room>,
}

impl Module {
    /// Bytes that are known to have this digest.
    #[must_use]
    pub fn new(digest: Digest, bytes: Bytes) -> Self {
        Self { digest, bytes, _room: None }
    }

    /// Bytes that take some of the room for those that come from servers.
    pub(crate) fn fetched(bytes: Bytes, room: Room) -> Self {
        Self { _room: Some(room), ..Self::new(Digest::of(&bytes), bytes) }
    }

    /// Reads the module in this file. Blocks on the disk.
    ///
    /// # Errors
    /// When the file cannot be read or is larger than [`MAX_MODULE`].
    pub fn read(path: &Path) -> Result<Self, FetchError> {
        let failed = |error| FetchError::File { path: path.to_owned(), error };
        // To open a pipe would wait for somebody to write to it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("is no plain file")));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_MODULE + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_MODULE {
            return Err(FetchError::TooLarge { what: path.display().to_string(), limit: MAX_MODULE });
        }
        Ok(Self::new(Digest::of(&bytes), bytes.into()))
    }

    /// The module, if it is the one that was asked for.
    ///
    /// # Errors
    /// When it has another digest.
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
    fn a_module_has_the_digest_that_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        std::fs::write(&path, b"module").unwrap();
        let module = Module::read(&path).unwrap();
        assert_eq!((module.digest, &module.bytes[..]), (Digest::of(b"module"), &b"module"[..]));
        assert!(module.clone().expect(None).is_ok() && module.clone().expect(Some(&Digest::of(b"module"))).is_ok());
        let error = module.expect(Some(&Digest::of(b"other"))).unwrap_err();
        assert_eq!((error.reason(), error.is_passing()), (Reason::VERIFICATION_ERROR, false));
        let missing = Module::read(&folder.path().join("b.wasm")).unwrap_err();
        assert_eq!((missing.reason(), missing.is_passing()), (Reason::PULL_ERROR, true));
    }

    #[test]
    fn a_module_larger_than_the_limit_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        std::fs::File::create(&path).unwrap().set_len(MAX_MODULE * 1000).unwrap();
        assert!(matches!(Module::read(&path), Err(FetchError::TooLarge { .. })));
    }
}
