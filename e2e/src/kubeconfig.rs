//! Kubeconfig files and clients for the users of a run.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::pki::Identity;

/// Writes a kubeconfig file for a user at a server. `authority` is the file with the CA of the server.
pub(crate) fn write(file: &Path, server: &str, authority: &Path, identity: &Identity) -> Result<PathBuf> {
    let content = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "user", "user": {"client-certificate": identity.certificate, "client-key": identity.key}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "user"}}],
        "current-context": "e2e",
    });
    std::fs::write(file, serde_yaml::to_string(&content)?)?;
    Ok(file.to_owned())
}

/// Returns the configuration of a client for the cluster and the user of this kubeconfig file.
pub(crate) async fn config(file: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(file)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // No retries: a test must see the first answer, and waits itself if it expects another.
    config.default_retry = false;
    Ok(config)
}

/// Returns a client with this configuration that impersonates another user.
pub(crate) fn impersonate(mut config: Config, user: &str, groups: &[&str]) -> Result<Client> {
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(groups.iter().map(ToString::to_string).collect());
    Ok(Client::try_from(config)?)
}
