//! References to modules in `spec.program.wasm.module`: a file, an OCI artifact, or an HTTPS URL.

mod artifact;
mod host;

use std::fmt;
use std::path::{Path, PathBuf};

use url::Url;

pub use artifact::{Artifact, ArtifactError, Mirror, Version};
pub use host::{Host, HostError};

/// The location of a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ModuleReference {
    File(PathBuf),
    /// An OCI artifact in a registry.
    Registry(Artifact),
    Https(Url),
}

/// The error of a reference that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("{0:?} is not a module reference: it must start with registry://, https:// or file://")]
    Scheme(String),
    #[error(
        "{0:?} is neither an absolute path (file:///…) nor a path relative to the manifest (file://./… or file://../…)"
    )]
    Path(String),
    #[error("{reference:?} does not name an artifact in a registry (registry://host/repository:tag): {error}")]
    Artifact { reference: String, error: ArtifactError },
    #[error("{reference:?} is not a valid URL: {error}")]
    Url { reference: String, error: url::ParseError },
    #[error("the module URL has a user name or a password: remove them from the URL and put them into a pull secret")]
    Credentials,
}

impl ModuleReference {
    /// Parses a reference. Relative paths start at `base`, the folder of the manifest.
    ///
    /// # Errors
    /// Returns an error if the scheme is unknown, the rest is not a valid path, artifact or URL, or the URL has credentials.
    pub fn parse(text: &str, base: &Path) -> Result<Self, ReferenceError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| ReferenceError::Scheme(text.to_owned()))?;
        match scheme {
            "file" if rest.starts_with("./") || rest.starts_with("../") => Ok(Self::File(base.join(rest))),
            "file" if rest.starts_with('/') && rest.len() > 1 => Ok(Self::File(PathBuf::from(rest))),
            "file" => Err(ReferenceError::Path(text.to_owned())),
            "registry" => match rest.parse() {
                Ok(artifact) => Ok(Self::Registry(artifact)),
                Err(error) => Err(ReferenceError::Artifact { reference: text.to_owned(), error }),
            },
            "https" => match Url::parse(text) {
                Ok(url) if !url.username().is_empty() || url.password().is_some() => Err(ReferenceError::Credentials),
                Ok(mut url) => {
                    url.set_fragment(None);
                    Ok(Self::Https(url))
                }
                Err(error) => Err(ReferenceError::Url { reference: text.to_owned(), error }),
            },
            _ => Err(ReferenceError::Scheme(text.to_owned())),
        }
    }
}

impl fmt::Display for ModuleReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file://{}", path.display()),
            Self::Registry(artifact) => write!(f, "registry://{artifact}"),
            Self::Https(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_a_file_an_artifact_or_a_url() {
        let parse = |text: &str| ModuleReference::parse(text, Path::new("/etc/policies"));
        let file = |path: &str| Ok(ModuleReference::File(path.into()));
        assert_eq!(parse("file:///opt/a.wasm"), file("/opt/a.wasm"));
        assert_eq!(parse("file://./a.wasm"), file("/etc/policies/./a.wasm"));
        assert_eq!(parse("file://../a.wasm"), file("/etc/policies/../a.wasm"));
        for (text, whole) in [
            ("registry://ghcr.io/a/b:v1", "registry://ghcr.io/a/b:v1"),
            ("registry://Registry.Local:5000/a", "registry://registry.local:5000/a:latest"),
            ("https://example.com/a.wasm?v=1#top", "https://example.com/a.wasm?v=1"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), whole);
        }
        for text in [
            "a.wasm",
            "file://",
            "file:///",
            "file://a.wasm",
            "ftp://a",
            "http://a/b.wasm",
            "",
            "https://",
            "https://user@example.com/a.wasm",
            "https://:secret@example.com/a.wasm",
            "registry://",
            "registry://ghcr.io",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.to_string().contains("secret@"), "{error}");
        }
    }
}
