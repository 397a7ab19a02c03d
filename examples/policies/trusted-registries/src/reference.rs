//! Parses image references as container runtimes do: `[registry/]path[:tag][@digest]`. If the first component has no dot, no
//! colon and no capital, and is not `localhost`, it belongs to the path, and the registry is Docker Hub.

const DEFAULT_REGISTRY: &str = "docker.io";

#[derive(Debug, PartialEq)]
pub struct Reference {
    /// The registry in lower case, with its port.
    registry: String,
    path: String,
    tag: Option<String>,
    has_digest: bool,
}

impl Reference {
    /// Parses a reference. The error completes the sentence "… is no image reference: ".
    pub fn parse(text: &str) -> Result<Self, String> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        if let Some(digest) = digest {
            check_digest(digest)?;
        }
        // A colon before the last slash belongs to the registry's port.
        let name_end = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[name_end..].split_once(':') {
            Some((last, tag)) => (&rest[..name_end + last.len()], Some(tag)),
            None => (rest, None),
        };
        if let Some(tag) = tag {
            check_tag(tag)?;
        }
        let (registry, path) = split_registry(name);
        check_path(&path)?;
        Ok(Self { registry, path, tag: tag.map(str::to_owned), has_digest: digest.is_some() })
    }

    /// Returns the complete registry and path, such as `docker.io/library/nginx` for `nginx`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.path)
    }

    /// Returns true if the image is under `host[:port][/path]`. A prefix matches whole components: `ghcr.io/acme`
    /// does not match `ghcr.io/acme-evil`.
    pub fn is_under(&self, prefix: &str) -> bool {
        let (host, path) = prefix.split_once('/').unwrap_or((prefix, ""));
        let under_path = path.is_empty()
            || self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        canonical(host) == self.registry && under_path
    }

    /// Returns true if the reference can mean another image at any time. With a digest it cannot, also with a tag.
    pub fn is_latest(&self) -> bool {
        !self.has_digest && self.tag.as_deref().is_none_or(|tag| tag == "latest")
    }
}

/// Checks an entry of the setting `registries`.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("registries: {prefix:?} {why}"));
    if prefix.contains("://") {
        return wrong("has a scheme; write the host alone, such as \"ghcr.io\"");
    }
    let (host, path) = match prefix.split_once('/') {
        Some((host, path)) => (host, Some(path)),
        None => (prefix, None),
    };
    if !is_registry(host) || !is_host(host) {
        return wrong("does not begin with a registry's host; for Docker Hub write \"docker.io/…\"");
    }
    match path {
        Some("") => wrong("ends with a slash; leave it out"),
        Some(path) if path.contains([':', '@']) => wrong("has a tag or digest; only host and path are compared"),
        Some(path) => check_path(path).or_else(|error| wrong(&error)),
        None => Ok(()),
    }
}

fn split_registry(name: &str) -> (String, String) {
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (canonical(first), rest),
        _ => (DEFAULT_REGISTRY.to_owned(), name),
    };
    // Docker Hub keeps its official images under `library/`.
    let is_official = registry == DEFAULT_REGISTRY && !path.contains('/') && !path.is_empty();
    let path = if is_official { format!("library/{path}") } else { path.to_owned() };
    (registry, path)
}

fn is_registry(component: &str) -> bool {
    component == "localhost" || component.contains(['.', ':']) || component.contains(|c: char| c.is_ascii_uppercase())
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_ipv6 = name.starts_with('[') && name.ends_with(']');
    let is_name = |name: &str| name.split('.').all(|label| !label.is_empty() && label.chars().all(is_label_char));
    (is_ipv6 || is_name(name)) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

/// Returns a host in lower case, and `docker.io` for the other names of Docker Hub.
fn canonical(host: &str) -> String {
    match host.to_ascii_lowercase() {
        hub if hub == "index.docker.io" || hub == "registry-1.docker.io" => DEFAULT_REGISTRY.to_owned(),
        host => host,
    }
}

fn check_path(path: &str) -> Result<(), String> {
    let is_component = |component: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        component.starts_with(edge) && component.ends_with(edge) && component.chars().all(inner)
    };
    if path.is_empty() {
        return Err("it has no path".to_owned());
    }
    if !path.split('/').all(is_component) {
        return Err(format!("{path:?} is no path of lower-case letters, digits, '.', '_', '-' and '/'"));
    }
    Ok(())
}

fn check_tag(tag: &str) -> Result<(), String> {
    let is_first = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_valid =
        tag.len() <= 128 && tag.starts_with(is_first) && tag.chars().all(|c| is_first(c) || matches!(c, '.' | '-'));
    if is_valid { Ok(()) } else { Err(format!("{tag:?} is no tag")) }
}

fn check_digest(digest: &str) -> Result<(), String> {
    let is_valid = digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
    });
    if is_valid { Ok(()) } else { Err(format!("{digest:?} is no digest such as \"sha256:…\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn references_are_parsed_as_by_container_runtimes() {
        for (text, name, is_latest) in [
            ("nginx", "docker.io/library/nginx", true),
            ("nginx:latest", "docker.io/library/nginx", true),
            ("nginx:1.29", "docker.io/library/nginx", false),
            ("docker.io/nginx:1.29", "docker.io/library/nginx", false),
            ("index.docker.io/library/nginx:1", "docker.io/library/nginx", false),
            ("bitnami/redis:8", "docker.io/bitnami/redis", false),
            ("ghcr.io/acme/api:v2", "ghcr.io/acme/api", false),
            ("GHCR.io/acme/api:v2", "ghcr.io/acme/api", false),
            ("localhost/api:v2", "localhost/api", false),
            ("localhost:5000/api", "localhost:5000/api", true),
            ("registry.example.com:5000/a/b/c:v2", "registry.example.com:5000/a/b/c", false),
            ("[fd00::1]:5000/api:v2", "[fd00::1]:5000/api", false),
            ("Registry/api:v2", "registry/api", false),
        ] {
            let reference = Reference::parse(text).expect(text);
            assert_eq!(reference.name(), name, "{text}");
            assert_eq!(reference.is_latest(), is_latest, "{text}");
        }
    }

    #[test]
    fn a_reference_with_a_digest_is_never_latest() {
        for text in [format!("nginx@{DIGEST}"), format!("nginx:latest@{DIGEST}"), format!("r.example:5000/a@{DIGEST}")]
        {
            assert!(!Reference::parse(&text).expect(&text).is_latest(), "{text}");
        }
    }

    #[test]
    fn malformed_references_are_refused() {
        for text in [
            "",
            " nginx",
            "nginx:",
            "nginx@",
            "nginx@sha256:abc",
            "nginx:1:2",
            "ghcr.io/",
            "ghcr.io//api",
            "ghcr.io/Acme/api",
            "https://ghcr.io/acme/api",
            "ghcr.io/acme/../evil",
            "ghcr.io/acme/api\n",
            "nginx:-1",
            "ghcr.io/acme@x/evil:1",
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_prefix_matches_whole_components() {
        for (text, prefix, expected) in [
            ("ghcr.io/acme/api:v2", "ghcr.io", true),
            ("ghcr.io/acme/api:v2", "GHCR.IO", true),
            ("ghcr.io/acme/api:v2", "ghcr.io/acme", true),
            ("ghcr.io/acme/api:v2", "ghcr.io/acme/api", true),
            ("ghcr.io/acme-evil/api:v2", "ghcr.io/acme", false),
            ("ghcr.io.evil.example/acme/api:v2", "ghcr.io", false),
            ("evil.example/ghcr.io/acme/api:v2", "ghcr.io", false),
            ("ghcr.io:5000/acme/api:v2", "ghcr.io", false),
            ("nginx:1.29", "docker.io/library", true),
            ("nginx:1.29", "index.docker.io", true),
            ("bitnami/redis:8", "docker.io/library", false),
        ] {
            assert_eq!(Reference::parse(text).expect(text).is_under(prefix), expected, "{text} {prefix}");
        }
    }

    #[test]
    fn prefixes_in_settings_are_checked() {
        for prefix in ["ghcr.io", "localhost", "localhost:5000", "registry.example.com:5000/a/b", "[fd00::1]:5000"] {
            assert_eq!(check_prefix(prefix), Ok(()), "{prefix}");
        }
        for (prefix, why) in [
            ("https://ghcr.io", "scheme"),
            ("acme", "docker.io"),
            ("", "host"),
            ("*.example.com", "host"),
            ("ghcr.io:99999", "host"),
            ("ghcr.io/", "slash"),
            ("ghcr.io/acme/", "path"),
            ("ghcr.io/acme/api:v2", "tag"),
            ("ghcr.io/Acme", "lower-case"),
        ] {
            let error = check_prefix(prefix).expect_err(prefix);
            assert!(error.contains(why), "{error}");
        }
    }
}
