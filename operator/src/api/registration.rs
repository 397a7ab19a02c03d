//! The registration of `actions.proviso.dev` with the API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, Client};
use proviso_crds::actions::{GROUP, VERSION};
use serde_json::{Value, json};

use crate::ca::{self, CurrentCa};
use crate::config::Config;
use crate::objects::labels;
use crate::registration::RegisteredObject;

const NAME: &str = "v1alpha1.actions.proviso.dev";

/// The registration of the aggregated API.
pub(crate) struct Registration {
    object: RegisteredObject<APIService>,
    namespace: String,
    /// The Service of the operator; `None` if the API is not to be registered.
    service: Option<String>,
}

impl Registration {
    pub(crate) fn new(client: Client, config: &Config, ca: ca::Receiver) -> Self {
        Self {
            object: RegisteredObject { api: Api::all(client), name: NAME, ca },
            namespace: config.namespace.clone(),
            service: config.service.clone().filter(|_| config.aggregated_api),
        }
    }

    /// Reconciles the `APIService`. Never returns.
    pub(crate) async fn run(&self) {
        let desired =
            self.service.as_deref().map(|service| move |ca: &CurrentCa| object(&self.namespace, service, &ca.bundle));
        self.object.reconcile(desired).await;
    }
}

fn object(namespace: &str, service: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": NAME, "labels": labels("operator", NAME)},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            // Less than the priority of custom resources, so that `kubectl get policies` lists the policies
            // themselves.
            "groupPriorityMinimum": 100,
            "versionPriority": 10,
            "service": {"namespace": namespace, "name": service, "port": 443},
            "caBundle": STANDARD.encode(bundle),
        },
    })
}
