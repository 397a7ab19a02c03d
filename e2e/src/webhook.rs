//! Webhook configurations for tests: as an operator would write them, limited to the test's own namespace.

use anyhow::Result;
use base64::Engine as _;
use serde_json::{Value, json};

use crate::{Cluster, Temporary};

/// A webhook that is asked about requests of one test.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// Of the configuration and, with `.e2e.proviso.dev`, of the webhook.
    pub name: String,
    /// Where the API server reaches it: `{"url": …}` or `{"service": …}`.
    pub client: Value,
    /// Who vouches for its certificate, in PEM.
    pub authority: String,
    pub mutating: bool,
    /// As in `rules` of a webhook configuration.
    pub rules: Value,
    /// `Fail` or `Ignore`
    pub failure_policy: &'static str,
    /// Only requests about such namespaces, or in them; `{}` for all.
    pub namespace_selector: Value,
    /// Only requests about such objects; `{}` for all.
    pub object_selector: Value,
}

impl Webhook {
    /// Registers it. The API server notices that a moment later.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub async fn register(self, cluster: &Cluster) -> Result<Temporary> {
        let mut client = self.client;
        client["caBundle"] = base64::engine::general_purpose::STANDARD.encode(&self.authority).into();
        let kind = if self.mutating { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": self.name},
            "webhooks": [{
                "name": format!("{}.e2e.proviso.dev", self.name),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 10,
                "failurePolicy": self.failure_policy,
                "matchPolicy": "Equivalent",
                "namespaceSelector": self.namespace_selector,
                "objectSelector": self.object_selector,
                "rules": self.rules,
                "clientConfig": client,
            }],
        });
        cluster.apply(serde_json::from_value(configuration)?).await
    }
}
