//! OCI artifact names `host/repository:tag` and `host/repository@digest`, with the grammar of the OCI distribution
//! specification.

use std::fmt;
use std::str::FromStr;

use super::host::{Host, HostError};
use crate::digest::{Digest, DigestError};

/// The name of Docker Hub in references, and the host of its registry.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// The maximum length of a tag, in bytes (OCI distribution specification).
const MAX_TAG: usize = 128;

/// An artifact in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Artifact {
    host: Host,
    repository: String,
    version: Version,
}

/// The version of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    Tag(String),
    /// The digest of the manifest.
    Digest(Digest),
}

/// A registry that mirrors another registry, at its root or below a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mirror {
    host: Host,
    path: Option<String>,
}

/// The error of a text that does not name an artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    #[error("the repository is missing")]
    NoRepository,
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("{0:?} is not a repository: give parts of a-z, 0-9 and single '.', '_', '-' within, separated by '/'")]
    Repository(String),
    #[error("{0:?} is not a tag: give 1 to {MAX_TAG} letters, digits, '_', '.' and '-', the first not '.' or '-'")]
    Tag(String),
    #[error(transparent)]
    Digest(#[from] DigestError),
}

impl Artifact {
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    #[must_use]
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Returns the host of the registry API; it differs from the name for Docker Hub.
    #[must_use]
    pub fn endpoint(&self) -> Host {
        let (name, registry) = DOCKER_HUB;
        registry.parse().ok().filter(|_| self.host.to_string() == name).unwrap_or_else(|| self.host.clone())
    }
}

impl Artifact {
    /// Parses an image name as container runtimes do: the default host is Docker Hub.
    ///
    /// # Errors
    /// Returns an error if the host, the repository or the version is not valid.
    pub fn from_image_name(text: &str) -> Result<Self, ArtifactError> {
        let first = text.split_once('/').map(|(first, _)| first);
        let has_host = first.is_some_and(|first| first.contains(['.', ':']) || first == "localhost");
        if has_host { text.parse() } else { format!("{}/{text}", DOCKER_HUB.0).parse() }
    }

    /// Returns the same artifact at a mirror.
    #[must_use]
    pub fn at_mirror(&self, mirror: &Mirror) -> Self {
        let path = mirror.path.as_ref();
        Self {
            host: mirror.host.clone(),
            repository: path.map_or_else(|| self.repository.clone(), |path| format!("{path}/{}", self.repository)),
            version: self.version.clone(),
        }
    }

    /// Returns the artifact with this manifest in the same repository.
    #[must_use]
    pub fn with(&self, manifest: Digest) -> Self {
        Self { version: Version::Digest(manifest), ..self.clone() }
    }
}

impl Mirror {
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }
}

impl FromStr for Mirror {
    type Err = ArtifactError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, path) = text.split_once('/').map_or((text, None), |(host, path)| (host, Some(path)));
        let path = path.filter(|path| !path.is_empty());
        match path {
            Some(path) if !path.split('/').all(is_part) => Err(ArtifactError::Repository(path.to_owned())),
            path => Ok(Self { host: host.parse()?, path: path.map(ToOwned::to_owned) }),
        }
    }
}

impl FromStr for Artifact {
    type Err = ArtifactError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, rest) = text.split_once('/').ok_or(ArtifactError::NoRepository)?;
        let host: Host = host.parse()?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse()?)),
            None => (rest, None),
        };
        let (repository, tag) = rest.split_once(':').unwrap_or((rest, "latest"));
        if !is_tag(tag) {
            return Err(ArtifactError::Tag(tag.to_owned()));
        }
        if !repository.split('/').all(is_part) {
            return Err(ArtifactError::Repository(repository.to_owned()));
        }
        let is_official = host.to_string() == DOCKER_HUB.0 && !repository.contains('/');
        Ok(Self {
            host,
            repository: if is_official { format!("library/{repository}") } else { repository.to_owned() },
            // The digest wins over a tag.
            version: digest.map_or_else(|| Version::Tag(tag.to_owned()), Version::Digest),
        })
    }
}

fn is_tag(text: &str) -> bool {
    let is_word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    text.len() <= MAX_TAG
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|c| is_word(c) || c == b'.' || c == b'-')
}

/// Returns true if `text` is one part of a repository name: words of a-z and 0-9, separated by `.`, `_`, `__` or any number
/// of `-`.
fn is_part(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |text: &str| matches!(text, "." | "_" | "__") || (!text.is_empty() && text.bytes().all(|c| c == b'-'));
    text.starts_with(is_word)
        && text.ends_with(is_word)
        && text.split(is_word).filter(|between| !between.is_empty()).all(is_separator)
}

impl fmt::Display for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, repository, version } = self;
        match version {
            Version::Tag(tag) => write!(f, "{host}/{repository}:{tag}"),
            Version::Digest(digest) => write!(f, "{host}/{repository}@{digest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_has_a_host_a_repository_and_a_version() {
        let digest = Digest::of(b"");
        for (text, whole) in [
            ("ghcr.io/kubewarden/policies/a:v1.0.0", "ghcr.io/kubewarden/policies/a:v1.0.0".to_owned()),
            ("localhost:5000/a", "localhost:5000/a:latest".to_owned()),
            ("docker.io/a", "docker.io/library/a:latest".to_owned()),
            (&format!("ghcr.io/a/b@{digest}"), format!("ghcr.io/a/b@{digest}")),
            (&format!("ghcr.io/a/b:v1@{digest}"), format!("ghcr.io/a/b@{digest}")),
            ("ghcr.io/a.b/c__d/e--f:_", "ghcr.io/a.b/c__d/e--f:_".to_owned()),
        ] {
            assert_eq!(text.parse::<Artifact>().unwrap().to_string(), whole);
        }
        let hub: Artifact = "docker.io/a/b:v1".parse().unwrap();
        assert_eq!(hub.endpoint().to_string(), "registry-1.docker.io");
    }

    #[test]
    fn an_image_without_a_host_is_on_docker_hub() {
        for (text, whole) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("org/app:v1", "docker.io/org/app:v1"),
            ("localhost/app", "localhost/app:latest"),
            ("registry:5000/app", "registry:5000/app:latest"),
            ("ghcr.io/org/app:v1", "ghcr.io/org/app:v1"),
        ] {
            assert_eq!(Artifact::from_image_name(text).unwrap().to_string(), whole);
        }
        assert!(Artifact::from_image_name("").is_err() && Artifact::from_image_name("a/b@v1").is_err());
    }

    #[test]
    fn a_mirror_has_the_artifacts_at_its_root_or_below_a_path() {
        let artifact: Artifact = "docker.io/a:v1".parse().unwrap();
        for (mirror, whole) in [
            ("mirror.local:5000", "mirror.local:5000/library/a:v1"),
            ("mirror.local/hub/cache", "mirror.local/hub/cache/library/a:v1"),
            ("docker.io", "docker.io/library/a:v1"),
        ] {
            assert_eq!(artifact.at_mirror(&mirror.parse().unwrap()).to_string(), whole);
        }
        for text in ["", "https://a", "a b", "a/B", "a/../b", "a//b"] {
            assert!(text.parse::<Mirror>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_that_registries_reject_are_refused() {
        let long = format!("ghcr.io/a:{}", "x".repeat(129));
        for text in [
            "",
            "ghcr.io",
            "/a",
            "ghcr.io/",
            "ghcr.io//a",
            "ghcr.io/A",
            "ghcr.io/a/../b",
            "ghcr.io/a..b",
            "ghcr.io/-a",
            "ghcr.io/a_",
            "ghcr.io/a___b",
            "ghcr.io/a:",
            "ghcr.io/a:.v",
            "ghcr.io/a:v/1",
            "ghcr.io/a@v1",
            "ghcr.io/a@sha512:00",
            "u:p@ghcr.io/a",
            "ghcr.io/a%2fb",
            &long,
        ] {
            assert!(text.parse::<Artifact>().is_err(), "{text:?}");
        }
    }
}
