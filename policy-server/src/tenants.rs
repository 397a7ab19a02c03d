//! The limits of namespaced policies on this policy server (docs/adr/0021). The operator writes them from the `PolicyServer` to the file
//! `--tenants`. Each preparation reads the file again.

use std::path::PathBuf;

use proviso_artifacts::TenantLimits;
use proviso_crds::Tenants;

/// The source of the limits.
#[derive(Clone, Debug)]
pub struct TenantSettings {
    /// The name of the `PolicyServer`, for error messages.
    pub server: String,
    /// The file of the limits; `None` means the default limits, which permit only pure evaluation.
    pub file: Option<PathBuf>,
    /// True if namespaced policies are asked about requests of Kubernetes itself.
    pub includes_system_requests: bool,
}

/// The error of limits that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("--tenants {path}: {error}", path = .path.display())]
pub struct TenantsError {
    path: PathBuf,
    error: std::io::Error,
}

impl TenantSettings {
    /// Reads the limits.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is malformed.
    pub async fn read(&self) -> Result<Tenants, TenantsError> {
        let Some(path) = self.file.clone() else { return Ok(Tenants::default()) };
        let read = {
            let path = path.clone();
            move || Ok(serde_json::from_slice(&std::fs::read(path)?)?)
        };
        let read =
            tokio::task::spawn_blocking(read).await.unwrap_or_else(|stopped| Err(std::io::Error::other(stopped)));
        read.map_err(|error| TenantsError { path, error })
    }
}

/// Returns the limits of fetches for namespaced policies.
#[must_use]
pub fn fetch_limits(tenants: &Tenants) -> TenantLimits {
    let server = |pattern: &String| pattern.split('/').next().and_then(|host| host.parse().ok());
    TenantLimits {
        pull_secrets: tenants.namespaced_pull_secrets.clone(),
        private_servers: tenants.namespaced_registries.iter().filter_map(server).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_limits_are_read_from_the_file_again_and_default_to_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tenants.json");
        let settings = |file: Option<PathBuf>| TenantSettings {
            server: "default".to_owned(),
            file,
            includes_system_requests: false,
        };
        assert_eq!(settings(None).read().await.unwrap(), Tenants::default());
        let settings = settings(Some(file.clone()));
        assert!(settings.read().await.is_err());
        for (text, registries) in [("{}", 0), (r#"{"namespacedRegistries": ["a:5000/b", "c"]}"#, 2)] {
            std::fs::write(&file, text).unwrap();
            let limits = fetch_limits(&settings.read().await.unwrap());
            assert_eq!(limits.private_servers.len(), registries, "{text}");
        }
    }
}
