//! Pull secrets for modules, in the format that the kubelet uses for images.
//!
//! Each pull secret is a folder with the name of its Secret and the file `.dockerconfigjson`. No error or log has content of
//! the file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::reference::Host;

/// The file in a Secret of the type `kubernetes.io/dockerconfigjson`.
const FILE: &str = ".dockerconfigjson";
/// The names of Docker Hub in Docker configurations.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// A user name and a password for a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The name of the Secret that holds the credential.
    pub secret: String,
    username: String,
    password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("secret", &self.secret).finish_non_exhaustive()
    }
}

impl Credential {
    /// Returns the value of the header `Authorization`.
    pub(super) fn to_basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.username, self.password)))
    }
}

/// The error of a pull secret that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PullSecretError {
    #[error("names the Secret {0:?}, but this policy server has no pull secrets: start it with --pull-secrets")]
    NoFolder(String),
    #[error(
        "names the Secret {0:?}, which this policy server does not have: add it to the imagePullSecrets of the PolicyServer"
    )]
    Missing(String),
    #[error("the Secret {name:?} cannot be read: {error}: it must be of the type kubernetes.io/dockerconfigjson")]
    File { name: String, error: std::io::Error },
    #[error("the Secret {name:?}: {FILE} is malformed (line {line}, column {column}): create the Secret again")]
    Malformed { name: String, line: usize, column: usize },
}

/// The credentials that a fetch may use.
#[derive(Debug, Default)]
pub struct PullSecrets {
    /// The server, the path prefix of the repositories (empty for all), and the credential.
    entries: Vec<(Host, String, Credential)>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl PullSecrets {
    /// Reads the Secrets `names` from the folder that they are mounted in, or all Secrets if `names` is empty. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// Returns an error if a named Secret is missing or malformed. Malformed Secrets are skipped if `names` is empty.
    pub fn read(folder: Option<&Path>, names: &[String]) -> Result<Self, PullSecretError> {
        let mut secrets = Self::default();
        match folder {
            None => match names.first() {
                Some(name) => return Err(PullSecretError::NoFolder(name.clone())),
                None => return Ok(secrets),
            },
            Some(folder) if names.is_empty() => {
                for name in mounted_secrets(folder) {
                    // A malformed Secret must not block a policy that does not name it.
                    if let Err(error) = secrets.add(folder, &name) {
                        tracing::warn!(secret = name, %error, "pull secret skipped");
                    }
                }
            }
            Some(folder) => names.iter().try_for_each(|name| secrets.add(folder, name))?,
        }
        Ok(secrets)
    }

    fn add(&mut self, folder: &Path, name: &str) -> Result<(), PullSecretError> {
        // The name of a Secret has no slash and does not start with a dot.
        if name.is_empty() || name.starts_with('.') || name.contains('/') || !folder.join(name).is_dir() {
            return Err(PullSecretError::Missing(name.to_owned()));
        }
        let text = std::fs::read(folder.join(name).join(FILE));
        let text = text.map_err(|error| PullSecretError::File { name: name.to_owned(), error })?;
        let document: Document = serde_json::from_slice(&text).map_err(|error| PullSecretError::Malformed {
            // The message of the parser may quote a password.
            name: name.to_owned(),
            line: error.line(),
            column: error.column(),
        })?;
        self.entries.extend(document.auths.into_iter().filter_map(|(server, entry)| {
            let (host, path) = server_of(&server)?;
            let (username, password) = entry.to_pair()?;
            Some((host, path, Credential { secret: name.to_owned(), username, password }))
        }));
        Ok(())
    }

    /// Returns the credential for a repository path on a server: the one with the longest matching path.
    #[must_use]
    pub fn find(&self, host: &Host, path: &str) -> Option<&Credential> {
        let is_hub = |name: &str| DOCKER_HUB.contains(&name);
        let matches = |server: &Host, prefix: &str| {
            let is_host = server == host || is_hub(&server.to_string()) && is_hub(&host.to_string());
            let rest = path.strip_prefix(prefix);
            is_host && rest.is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with('/'))
        };
        let matching = self.entries.iter().filter(|(server, prefix, _)| matches(server, prefix));
        // `max_by_key` returns the last maximum: with `rev`, the first Secret by name wins.
        matching.rev().max_by_key(|(_, prefix, _)| prefix.len()).map(|(.., credential)| credential)
    }
}

/// Returns the names of the mounted Secrets, sorted.
fn mounted_secrets(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.join(FILE).exists()).collect();
    let mut names: Vec<String> = paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    names.sort();
    names
}

/// Parses a server of a Docker configuration, such as `https://index.docker.io/v1/` or `registry.example.com/team`, into the
/// host and the path of the repositories.
fn server_of(text: &str) -> Option<(Host, String)> {
    let text = text.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let (host, path) = text.split_once('/').unwrap_or((text, ""));
    // These paths are versions of the registry API and not repositories.
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    Some((host.parse().ok()?, path.to_owned()))
}

impl Entry {
    /// Returns the user name and password; `None` if one of them is missing.
    fn to_pair(&self) -> Option<(String, String)> {
        if let Some(auth) = self.auth.as_ref().filter(|auth| !auth.is_empty()) {
            let text = String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok()?;
            let (username, password) = text.split_once(':')?;
            return Some((username.to_owned(), password.trim_end_matches('\0').to_owned()));
        }
        Some((self.username.clone()?, self.password.clone()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(secrets: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in secrets {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join(FILE), content).unwrap();
        }
        folder
    }

    fn found(secrets: &PullSecrets, host: &str, path: &str) -> Option<String> {
        secrets.find(&host.parse().unwrap(), path).map(|found| format!("{}/{}", found.secret, found.username))
    }

    #[test]
    fn the_longest_matching_path_of_the_allowed_secrets_wins() {
        let auth = STANDARD.encode("hub:a:b");
        let folder = folder(&[
            ("a", r#"{"auths": {"ghcr.io": {"username": "all", "password": "p"}}}"#),
            (
                "b",
                r#"{"auths": {"https://ghcr.io/team/": {"username": "team", "password": "p"}, "ghcr.io": {"username": "late", "password": "p"}}}"#,
            ),
            ("c", &format!(r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{auth}"}}, "none": {{}}}}}}"#)),
            ("broken", "{"),
        ]);
        let all = PullSecrets::read(Some(folder.path()), &[]).unwrap();
        for (host, path, wanted) in [
            ("ghcr.io", "a/b", Some("a/all")),
            ("ghcr.io", "team/b", Some("b/team")),
            ("ghcr.io", "teams/b", Some("a/all")),
            ("docker.io", "library/a", Some("c/hub")),
            ("none", "a", None),
            ("ghcr.io:5000", "a", None),
        ] {
            assert_eq!(found(&all, host, path).as_deref(), wanted, "{host}/{path}");
        }
        let hub = all.find(&"registry-1.docker.io".parse().unwrap(), "a").unwrap();
        assert_eq!(hub.to_basic(), format!("Basic {auth}"), "only the first colon separates");
        let named = PullSecrets::read(Some(folder.path()), &["b".to_owned()]).unwrap();
        assert_eq!(found(&named, "ghcr.io", "a").as_deref(), Some("b/late"));
        assert_eq!(found(&named, "docker.io", "a"), None);
    }

    #[test]
    fn a_named_secret_must_be_valid_and_errors_do_not_quote_it() {
        let folder = folder(&[("odd", r#"{"auths": {"ghcr.io": "hunter2"}}"#)]);
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let read = |name: &str| PullSecrets::read(Some(folder.path()), &[name.to_owned()]).unwrap_err();
        assert!(matches!(read("odd"), PullSecretError::Malformed { line: 1, .. }));
        assert!(!format!("{0} {0:?}", read("odd")).contains("hunter2"));
        assert!(matches!(read("empty"), PullSecretError::File { .. }));
        for name in ["missing", "", "..", "../odd", ".hidden"] {
            assert!(matches!(read(name), PullSecretError::Missing(_)), "{name:?}");
        }
        assert!(matches!(PullSecrets::read(None, &["a".to_owned()]), Err(PullSecretError::NoFolder(_))));
        assert!(PullSecrets::read(None, &[]).is_ok());
        let credential = Credential { secret: "s".into(), username: "u".into(), password: "hunter2".into() };
        assert!(!format!("{credential:?}").contains("hunter2"));
    }
}
