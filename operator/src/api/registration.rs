//! Tells the API server that the operator answers `actions.proviso.dev`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, Client};
use proviso_crds::actions::{GROUP, VERSION};
use serde_json::{Value, json};

use crate::authority;
use crate::config::Config;
use crate::objects::labels;
use crate::registered::Registered;

const NAME: &str = "v1alpha1.actions.proviso.dev";

/// Of the aggregated API.
pub(crate) struct Registration {
    registered: Registered<APIService>,
    namespace: String,
    /// None where nobody is to be told.
    service: Option<String>,
}

impl Registration {
    pub(crate) fn new(client: Client, config: &Config, authority: authority::Receiver) -> Self {
        Self {
            registered: Registered { api: Api::all(client), name: NAME, authority },
            namespace: config.namespace.clone(),
            service: config.service.clone().filter(|_| config.aggregated_api),
        }
    }

    /// Keeps it. Does not end.
    pub(crate) async fn run(&self) {
        let wanted =
            self.service.as_deref().map(|service| move |bundle: &str| object(&self.namespace, service, bundle));
        self.registered.keep(wanted).await;
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
            // Below that of custom resources: `kubectl get policies` is about the policies themselves.
            "groupPriorityMinimum": 100,
            "versionPriority": 10,
            "service": {"namespace": namespace, "name": service, "port": 443},
            "caBundle": STANDARD.encode(bundle),
        },
    })
}
