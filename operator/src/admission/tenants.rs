//! The check of namespaced policies and experiments against their policy server, and against the limits of their namespace, at
//! `kubectl apply`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::admission::Operation;
use kube::{Api, ResourceExt as _};
use proviso_crds::{PolicyServer, Tenants};
use serde_json::value::RawValue;

use super::review::{Object, Refusal, ReviewedRequest, read};
use super::{API_SERVER_TIMEOUT, Admission, PolicyParts};
use crate::tenants::{self, SystemRequests};
use crate::usage::CountedKind;

/// The limits of a policy server, as far as they concern one namespace.
pub(super) struct ServerTenants {
    pub tenants: Tenants,
    /// The labels of the namespace, if the limits need them.
    labels: BTreeMap<String, String>,
}

impl ServerTenants {
    pub(super) fn system(found: Option<&Self>) -> SystemRequests {
        SystemRequests::from(found.map(|found| &found.tenants))
    }
}

impl Admission {
    /// Reads the limits for the spec of a policy: those of its policy server for the Policies of a namespace. Returns `None` for a
    /// cluster-scoped policy or one that configures components, and if the policy server does not exist or cannot be read now: the
    /// controllers check each generation again before they schedule it. `at` is the path of the spec in its object.
    ///
    /// # Errors
    /// Returns the refusal if the policy server does not allow the namespace, or the spec cannot be read.
    pub(super) async fn server_tenants(
        &self,
        namespace: Option<&str>,
        at: &str,
        spec: &RawValue,
    ) -> Result<Option<ServerTenants>, Refusal> {
        let Some(namespace) = namespace else { return Ok(None) };
        let parts = read(spec).map_err(|error| format!("{at}: {error}"))?;
        let PolicyParts { policy_server, configuration, .. } = parts;
        if configuration.is_some() {
            return Ok(None);
        }
        let found = match tokio::time::timeout(API_SERVER_TIMEOUT, self.read_server(&policy_server, namespace)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!(server = policy_server, %error, "cannot read the PolicyServer of a policy");
                None
            }
            Err(_) => None,
        };
        let refused = found.as_ref().and_then(|ServerTenants { tenants, labels }| {
            tenants::namespace_refusal(tenants, namespace, labels, at, &policy_server)
        });
        refused.map_or(Ok(found), |message| Err(message.into()))
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
    pub(super) async fn usage_refusal(&self, request: &ReviewedRequest<'_>, object: &Object<'_>) -> Option<String> {
        let kind = match request.kind.kind.as_str() {
            "Policy" => CountedKind::Policy,
            "PolicyExperiment" => CountedKind::Experiment,
            _ => return None,
        };
        if !matches!(request.operation, Operation::Create | Operation::Update) {
            return None;
        }
        self.usage.listed_within(API_SERVER_TIMEOUT).await;
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let refusal = self.usage.refusal_of_write(kind, namespace, &object.metadata.name, object.spec());
        refusal.map(|message| format!("metadata.namespace: {message}"))
    }
}
