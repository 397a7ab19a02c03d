//! The client certificate that API servers present to webhooks, as docs/how-to/authenticate-api-servers.md describes it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use crate::pki::Identity;

/// Writes the `AdmissionConfiguration` of an API server that presents this certificate to all webhooks. `folder` is
/// for this API server alone. Returns the file.
pub(super) fn admission_configuration(folder: &Path, identity: &Identity) -> Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let kubeconfig = folder.join("webhooks.kubeconfig");
    let user = json!({"client-certificate": identity.certificate, "client-key": identity.key});
    let content = json!({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]});
    std::fs::write(&kubeconfig, serde_yaml::to_string(&content)?)?;

    let api = "apiserver.config.k8s.io/v1";
    let webhooks = json!({"apiVersion": api, "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig});
    let plugins = ["ValidatingAdmissionWebhook", "MutatingAdmissionWebhook"];
    let plugins = plugins.map(|name| json!({"name": name, "configuration": webhooks}));
    let content = json!({"apiVersion": api, "kind": "AdmissionConfiguration", "plugins": plugins});
    let file = folder.join("admission.yaml");
    std::fs::write(&file, serde_yaml::to_string(&content)?)?;
    Ok(file)
}
