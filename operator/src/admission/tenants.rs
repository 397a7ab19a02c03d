//! The check of namespaced policies and experiments against their policy server, and against the limits of their namespace, at
//! `kubectl apply`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, Operation};
use kube::{Api, ResourceExt as _};
use proviso_crds::{PolicyServer, PolicySpec, Tenants};

use super::{API_SERVER_TIMEOUT, Admission};
use crate::tenants::{self, SystemRequests};
use crate::usage::CountedKind;

/// The limits of a policy server, as far as they concern one namespace.
pub(super) struct ServerTenants {
    tenants: Tenants,
    /// The labels of the namespace, if the limits need them.
    labels: BTreeMap<String, String>,
}

impl ServerTenants {
    pub(super) fn system(found: Option<&Self>) -> SystemRequests {
        SystemRequests::from(found.map(|found| &found.tenants))
    }

    /// Returns the reason to deny a Policy with this spec. `at` is the path of the spec in its object.
    pub(super) fn refusal(&self, namespace: &str, at: &str, spec: &PolicySpec) -> Option<String> {
        let Self { tenants, labels } = self;
        tenants::check(tenants, namespace, labels, at, &spec.policy_server, spec).map(|(_, message)| message)
    }
}

impl Admission {
    /// Reads the limits of a policy server for the Policies of a namespace. Returns `None` if the policy server does not exist or cannot
    /// be read now: the controllers check each generation again before they schedule it.
    pub(super) async fn server_tenants(&self, server: &str, namespace: &str) -> Option<ServerTenants> {
        match tokio::time::timeout(API_SERVER_TIMEOUT, self.read_server(server, namespace)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!(server, %error, "cannot read the PolicyServer of a policy");
                None
            }
            Err(_) => None,
        }
    }

    async fn read_server(&self, server: &str, namespace: &str) -> kube::Result<Option<ServerTenants>> {
        let found = Api::<PolicyServer>::all(self.client.clone()).get_opt(server).await?;
        let Some(PolicyServer { spec, .. }) = found else { return Ok(None) };
        let tenants = spec.tenants;
        let mut labels = BTreeMap::new();
        if tenants.needs_labels(namespace) {
            let found = Api::<Namespace>::all(self.client.clone()).get_metadata_opt(namespace).await?;
            labels = found.map(|found| found.labels().clone()).unwrap_or_default();
        }
        Ok(Some(ServerTenants { tenants, labels }))
    }

    /// Returns the reason to deny an object because its namespace is full.
    pub(super) async fn usage_refusal(&self, request: &AdmissionRequest<DynamicObject>) -> Option<String> {
        let kind = match request.kind.kind.as_str() {
            "Policy" => CountedKind::Policy,
            "PolicyExperiment" => CountedKind::Experiment,
            _ => return None,
        };
        if !matches!(request.operation, Operation::Create | Operation::Update) {
            return None;
        }
        let object = request.object.as_ref()?;
        self.usage.listed_within(API_SERVER_TIMEOUT).await;
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let refusal = self.usage.refusal_of_write(kind, namespace, &object.name_any(), &object.data["spec"]);
        refusal.map(|message| format!("metadata.namespace: {message}"))
    }
}
