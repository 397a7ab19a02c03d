//! The permission of namespaced policies and experiments to use a policy server (docs/adr/0021): the check before each new
//! generation. Reads caches only. `admission::tenants` has the check at `kubectl apply`.

use std::collections::BTreeMap;

use kube::{Resource, ResourceExt as _};
use proviso_core::{Failure, Reason};
use proviso_crds::tenants::DEFAULT_SERVER;
use proviso_crds::{PolicySpec, Tenants, reasons};

use crate::context::Context;

/// The requests of Kubernetes itself, for a namespaced policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemRequests {
    /// The policy is not asked about them, except for the objects of workloads.
    Excluded,
    Included,
}

impl SystemRequests {
    /// Returns the setting of a policy server; the default if the policy server does not exist or cannot be read.
    pub fn of(server: &str, context: &Context) -> Self {
        let found = context.caches.servers.reader().get(server, None);
        Self::from(found.as_ref().and_then(|found| found.0.as_ref().ok()).map(|found| &found.spec.tenants))
    }

    pub fn from(tenants: Option<&Tenants>) -> Self {
        let is_included = tenants.is_some_and(|tenants| tenants.namespaced_system_requests);
        if is_included { Self::Included } else { Self::Excluded }
    }
}

/// Returns the reason why no new generation of this spec may be scheduled on a policy server, or previewed there; `None` for a
/// cluster-scoped object, and for a configuration policy, which uses no policy server. `at` is the path of the spec in `object`.
pub(crate) fn refusal(
    object: &impl Resource,
    at: &str,
    server: &str,
    spec: &PolicySpec,
    context: &Context,
) -> Option<Failure> {
    let namespace = object.namespace().filter(|_| spec.configuration.is_none())?;
    let missing = || {
        let message = format!("there is no PolicyServer {server} that the operator can read");
        Some(Failure::new(reasons::POLICY_SERVER_NOT_FOUND, message))
    };
    let found = context.caches.servers.reader().get(server, None);
    let tenants = match found.as_ref().map(|found| &found.0) {
        Some(Ok(found)) => found.spec.tenants.clone(),
        // Every namespace may use the PolicyServer `default` by default, also before it is created.
        None if server == DEFAULT_SERVER => Tenants::default(),
        Some(Err(_)) | None => return missing(),
    };
    let labels = context.caches.namespaces.reader().get(&namespace, None);
    let labels = labels.map(|found| found.labels().clone()).unwrap_or_default();
    check(&tenants, &namespace, &labels, at, server, spec).map(|(reason, message)| Failure::new(reason, message))
}

/// Returns the first reason why a policy server with these limits does not serve a Policy with this spec, and a message.
fn check(
    tenants: &Tenants,
    namespace: &str,
    labels: &BTreeMap<String, String>,
    at: &str,
    server: &str,
    spec: &PolicySpec,
) -> Option<(Reason, String)> {
    if let Some(message) = namespace_refusal(tenants, namespace, labels, at, server) {
        return Some((reasons::NAMESPACE_NOT_ALLOWED, message));
    }
    let errors = tenants.check(at, server, spec);
    let message = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    (!errors.is_empty()).then_some((reasons::NOT_PERMITTED, message))
}

/// Returns the reason why a policy server with these limits serves no Policies of a namespace with these labels.
pub(crate) fn namespace_refusal(
    tenants: &Tenants,
    namespace: &str,
    labels: &BTreeMap<String, String>,
    at: &str,
    server: &str,
) -> Option<String> {
    (!tenants.allows_namespace(server, namespace, labels)).then(|| {
        format!(
            "{at}.policyServer: PolicyServer {server} does not allow Policies of the namespace {namespace}: name another one, or ask an \
             administrator to add the namespace to its allowedNamespaces"
        )
    })
}
