//! Tells the API server to ask the operator about policies, and goes on telling it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, Client};
use proviso_crds::{GROUP, VERSION};
use serde_json::{Value, json};

use super::PATH;
use crate::authority;
use crate::config::Config;
use crate::objects::labels;
use crate::registered::Registered;

const NAME: &str = "proviso-operator";

/// Of the webhook of our own kinds.
pub(crate) struct Registration {
    registered: Registered<ValidatingWebhookConfiguration>,
    namespace: String,
    /// None where nobody is to be told.
    service: Option<String>,
}

impl Registration {
    pub(crate) fn new(client: Client, config: &Config, authority: authority::Receiver) -> Self {
        let registered = Registered { api: Api::all(client), name: NAME, authority };
        Self { registered, namespace: config.namespace.clone(), service: config.service.clone() }
    }

    /// Keeps it. Does not end.
    pub(crate) async fn run(&self) {
        let wanted = |service| move |bundle: &str| configuration(&self.namespace, service, bundle);
        self.registered.keep(self.service.as_deref().map(wanted)).await;
    }
}

fn configuration(namespace: &str, service: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME, "labels": labels("operator", NAME)},
        "webhooks": [{
            "name": "policies.proviso.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            // What nobody has looked at would be found out by its rollout: but nobody is there to roll it out either.
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": 10,
            "rules": [{
                "operations": ["CREATE", "UPDATE"],
                "apiGroups": [GROUP],
                "apiVersions": [VERSION],
                "resources": ["policies", "clusterpolicies", "policyexperiments", "clusterpolicyexperiments"],
                "scope": "*",
            }],
            "clientConfig": {
                "service": {"namespace": namespace, "name": service, "port": 443, "path": PATH},
                "caBundle": STANDARD.encode(bundle),
            },
        }],
    })
}
