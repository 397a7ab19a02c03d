//! The registration of the admission webhook with the API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, Client};
use proviso_crds::{GROUP, VERSION};
use serde_json::{Value, json};

use super::PATH;
use crate::ca;
use crate::config::Config;
use crate::objects::labels;
use crate::registration::RegisteredObject;

const NAME: &str = "proviso-operator";

/// The registration of the admission webhook for Proviso's own kinds.
pub(crate) struct Registration {
    object: RegisteredObject<ValidatingWebhookConfiguration>,
    namespace: String,
    /// The Service of the operator; `None` if the webhook is not to be registered.
    service: Option<String>,
}

impl Registration {
    pub(crate) fn new(client: Client, config: &Config, ca: ca::Receiver) -> Self {
        let object = RegisteredObject { api: Api::all(client), name: NAME, ca };
        Self { object, namespace: config.namespace.clone(), service: config.service.clone() }
    }

    /// Reconciles the webhook configuration. Never returns.
    pub(crate) async fn run(&self) {
        let desired = |service| move |bundle: &str| configuration(&self.namespace, service, bundle);
        self.object.reconcile(self.service.as_deref().map(desired)).await;
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
            // Without an operator to check the policy, there is no operator to roll it out either.
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
