//! Image references as in pods: `nginx`, `team/app:v1`, `registry.example.com/app@sha256:…`.

use proviso_artifacts::{Artifact, ArtifactError};

/// Parses an image reference. The default registry is Docker Hub.
///
/// # Errors
/// Returns an error if the text is not an image reference.
pub(super) fn parse(text: &str) -> Result<Artifact, ArtifactError> {
    let text = text.strip_prefix("registry://").unwrap_or(text);
    match text.split_once('/') {
        // Container runtimes use the same rule: a first segment with a dot or a colon is a registry.
        Some((first, _)) if first == "localhost" || first.contains(['.', ':']) => text.parse(),
        _ => format!("docker.io/{text}").parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_the_syntax_of_pods() {
        for (text, wanted) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1", "docker.io/library/nginx:1"),
            ("team/app:v1", "docker.io/team/app:v1"),
            ("docker.io/nginx", "docker.io/library/nginx:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("127.0.0.1:5000/app:v1", "127.0.0.1:5000/app:v1"),
            ("registry://ghcr.io/a/b:v1", "ghcr.io/a/b:v1"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), wanted);
        }
        for text in ["", "a b", "NGINX", "https://ghcr.io/a", "ghcr.io/../a"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
