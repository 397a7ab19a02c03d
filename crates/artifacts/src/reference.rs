//! `spec.program.wasm.module`: what it names, and the bytes behind it. Only files so far.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::digest::Digest;

/// The largest module, in bytes.
pub const MAX_MODULE: u64 = 64 * 1024 * 1024;

/// Where a module is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ModuleReference {
    File(PathBuf),
}

/// A reference that names nothing that can be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("{0:?} is no module reference: it starts with none of registry://, https:// and file://")]
    Scheme(String),
    #[error("modules are not fetched from {0}:// yet: download the module and name it by file://")]
    NotYet(&'static str),
    #[error(
        "{0:?} names neither an absolute path (file:///…) nor one relative to the manifest (file://./… or file://../…)"
    )]
    Path(String),
}

/// A module that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("the module {path} cannot be read: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("the module {path} is larger than {MAX_MODULE} bytes (64 MiB)")]
    TooLarge { path: PathBuf },
    #[error("the module has the digest {actual}, not {wanted}, which the policy asks for")]
    Digest { actual: Digest, wanted: Digest },
}

impl FetchError {
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Digest { .. } => "VerificationError",
            Self::File { .. } | Self::TooLarge { .. } => "PullError",
        }
    }
}

/// A module as it was fetched.
#[derive(Clone, Debug)]
pub struct Module {
    pub digest: Digest,
    pub bytes: Bytes,
}

impl ModuleReference {
    /// Reads a reference; relative paths start at `base`, the folder of the manifest.
    ///
    /// # Errors
    /// When the scheme is unknown or not supported yet, or the path is neither absolute nor starts with a dot.
    pub fn parse(text: &str, base: &Path) -> Result<Self, ReferenceError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| ReferenceError::Scheme(text.to_owned()))?;
        match scheme {
            "file" if rest.starts_with("./") || rest.starts_with("../") => Ok(Self::File(base.join(rest))),
            "file" if rest.starts_with('/') && rest.len() > 1 => Ok(Self::File(PathBuf::from(rest))),
            "file" => Err(ReferenceError::Path(text.to_owned())),
            "registry" => Err(ReferenceError::NotYet("registry")),
            "https" => Err(ReferenceError::NotYet("https")),
            _ => Err(ReferenceError::Scheme(text.to_owned())),
        }
    }

    /// Reads the module and checks its size and, where one is wanted, its digest. Blocks on the disk.
    ///
    /// # Errors
    /// When the module cannot be read, is larger than [`MAX_MODULE`] or has another digest.
    pub fn fetch(&self, wanted: Option<&Digest>) -> Result<Module, FetchError> {
        let Self::File(path) = self;
        let failed = |error| FetchError::File { path: path.clone(), error };
        // To open a pipe would wait for somebody to write to it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("is no plain file")));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_MODULE + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_MODULE {
            return Err(FetchError::TooLarge { path: path.clone() });
        }
        let digest = Digest::of(&bytes);
        match wanted {
            Some(wanted) if *wanted != digest => Err(FetchError::Digest { actual: digest, wanted: *wanted }),
            _ => Ok(Module { digest, bytes: bytes.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_a_file_from_the_manifest_or_from_the_root() {
        let parse = |text: &str| ModuleReference::parse(text, Path::new("/etc/policies"));
        let file = |path: &str| Ok(ModuleReference::File(path.into()));
        assert_eq!(parse("file:///opt/a.wasm"), file("/opt/a.wasm"));
        assert_eq!(parse("file://./a.wasm"), file("/etc/policies/./a.wasm"));
        assert_eq!(parse("file://../a.wasm"), file("/etc/policies/../a.wasm"));
        assert_eq!(parse("registry://ghcr.io/a/b:v1"), Err(ReferenceError::NotYet("registry")));
        for text in ["a.wasm", "file://", "file:///", "file://a.wasm", "ftp://a", ""] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_fetched_module_has_the_digest_that_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.wasm"), b"module").unwrap();
        let reference = ModuleReference::parse("file://./a.wasm", folder.path()).unwrap();
        let digest = Digest::of(b"module");
        assert_eq!(reference.fetch(None).unwrap().digest, digest);
        assert_eq!(reference.fetch(Some(&digest)).unwrap().bytes, "module");
        let error = reference.fetch(Some(&Digest::of(b"other"))).unwrap_err();
        assert_eq!(error.reason(), "VerificationError");
        let missing = ModuleReference::parse("file://./b.wasm", folder.path()).unwrap();
        assert_eq!(missing.fetch(None).unwrap_err().reason(), "PullError");
    }

    #[test]
    fn a_module_larger_than_the_limit_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        std::fs::File::create(&path).unwrap().set_len(MAX_MODULE * 1000).unwrap();
        assert!(matches!(ModuleReference::File(path).fetch(None), Err(FetchError::TooLarge { .. })));
    }
}
