//! The registration of the admission webhooks with the API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, Client};
use proviso_crds::{GROUP, VERSION};
use serde_json::{Value, json};

use jiff::Timestamp;

use super::{path, tokens};
use crate::ca::{self, CurrentCa};
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
        let desired = |service| move |ca: &CurrentCa| configuration(&self.namespace, service, ca);
        self.object.reconcile(self.service.as_deref().map(desired)).await;
    }
}

fn configuration(namespace: &str, service: &str, ca: &CurrentCa) -> Value {
    let path = path(&tokens::current(&ca.signing, Timestamp::now()));
    let client_config = json!({
        "service": {"namespace": namespace, "name": service, "port": 443, "path": path},
        "caBundle": STANDARD.encode(&ca.bundle),
    });
    let rules = |operations: &[&str], resources: &[&str]| {
        json!([{
            "operations": operations, "apiGroups": [GROUP], "apiVersions": [VERSION], "resources": resources, "scope": "*",
        }])
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME, "labels": labels("operator", NAME)},
        "webhooks": [
            {
                "name": "policies.proviso.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                // Without an operator to check the policy, there is no operator to roll it out either.
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "timeoutSeconds": 10,
                "rules": rules(
                    &["CREATE", "UPDATE"],
                    &["policies", "clusterpolicies", "policyexperiments", "clusterpolicyexperiments"],
                ),
                "clientConfig": client_config,
            },
            {
                "name": "subscriptions.proviso.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                // Without the check of the author's permissions, the operator would run commands for anybody.
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "timeoutSeconds": 10,
                "rules": rules(&["CREATE", "UPDATE"], &["policysubscriptions"]),
                "clientConfig": client_config,
            },
            {
                "name": "revisions.proviso.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                // The webhook prevents mistakes. An operator that does not answer must not keep anything from being deleted.
                "failurePolicy": "Ignore",
                "matchPolicy": "Equivalent",
                "timeoutSeconds": 5,
                "rules": rules(&["DELETE"], &["policyrevisions"]),
                "matchConditions": deletion_conditions(namespace),
                "clientConfig": client_config,
            },
        ],
    })
}

/// Returns the conditions of a deletion that the operator checks: a client deletes a live revision that is neither part of
/// Proviso nor a controller of Kubernetes, such as the one that deletes the objects of a deleted namespace.
fn deletion_conditions(namespace: &str) -> Value {
    let user = "request.userInfo.username";
    json!([
        {
            "name": "is-live",
            "expression": "has(oldObject.status) && has(oldObject.status.conditions) && \
                           oldObject.status.conditions.exists(it, it.type == 'Live' && it.status == 'True')",
        },
        {"name": "is-not-proviso", "expression": format!("!{user}.startsWith('system:serviceaccount:{namespace}:')")},
        {
            "name": "is-not-kubernetes",
            "expression": format!(
                "!{user}.startsWith('system:serviceaccount:kube-system:') && {user} != 'system:kube-controller-manager'"
            ),
        },
    ])
}
