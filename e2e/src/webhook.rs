//! Webhook configurations for tests, as an operator would write them, limited to the namespace of a test.

use anyhow::Result;
use base64::Engine as _;
use serde_json::{Value, json};

use crate::{Cluster, Temporary};

/// A webhook for the requests of one test.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// The name of the configuration. With `.e2e.proviso.dev`, it is the name of the webhook.
    pub name: String,
    /// The address of the webhook for the API server: `{"url": …}` or `{"service": …}`.
    pub client: Value,
    /// The CA of the webhook's certificate, in PEM.
    pub authority: String,
    pub mutating: bool,
    /// The field `rules` of the webhook.
    pub rules: Value,
    /// The field `failurePolicy` of the webhook: `Fail` or `Ignore`.
    pub failure_policy: &'static str,
    /// The field `namespaceSelector` of the webhook; `{}` for all namespaces.
    pub namespace_selector: Value,
    /// The field `objectSelector` of the webhook; `{}` for all objects.
    pub object_selector: Value,
}

impl Webhook {
    /// Creates the webhook configuration. The API server uses it a moment later.
    ///
    /// # Errors
    /// If the API server refuses the configuration.
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
