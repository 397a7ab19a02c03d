//! Tells the API server to ask the operator about policies, and goes on telling it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DeleteParams, Patch};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use proviso_crds::{GROUP, VERSION};
use serde_json::{Value, json};

use super::PATH;
use crate::authority;
use crate::config::Config;
use crate::objects::{RESYNC, RETRY, apply, ignore_gone, labels, watching};

const NAME: &str = "proviso-operator";

/// The webhook of our own kinds.
pub(crate) struct Registration {
    webhooks: Api<ValidatingWebhookConfiguration>,
    namespace: String,
    /// None where nobody is to be told.
    service: Option<String>,
    authority: authority::Receiver,
}

impl Registration {
    pub(crate) fn new(client: Client, config: &Config, authority: authority::Receiver) -> Self {
        let (namespace, service) = (config.namespace.clone(), config.admission_service.clone());
        Self { webhooks: Api::all(client), namespace, service, authority }
    }

    /// Keeps it. Does not end.
    pub(crate) async fn run(&self) {
        let Some(service) = &self.service else {
            // An earlier operator may have had one, and nobody answers there any more.
            if let Err(error) = ignore_gone(self.webhooks.delete(NAME, &DeleteParams::default()).await) {
                tracing::warn!(webhook = NAME, %error, "it cannot be removed: policies may be refused until it is");
            }
            return std::future::pending().await;
        };
        let only = watching().fields(&format!("metadata.name={NAME}"));
        let mut changes = Box::pin(watcher(self.webhooks.clone(), only).default_backoff());
        let mut authority = self.authority.clone();
        loop {
            let bundle = authority.borrow_and_update().as_ref().map(|trusted| trusted.bundle.clone());
            let mut pause = RESYNC;
            if let Some(bundle) = bundle {
                let wanted = configuration(&self.namespace, service, &bundle);
                if let Err(error) = self.webhooks.patch(NAME, &apply(), &Patch::Apply(wanted)).await {
                    tracing::warn!(%error, "the API server cannot be told to ask about policies; trying again");
                    pause = RETRY;
                }
            }
            tokio::select! {
                _ = changes.next() => {}
                Ok(()) = authority.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
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
