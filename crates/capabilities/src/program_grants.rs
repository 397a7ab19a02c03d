//! The grants of one program: the capabilities that it may call, and the kinds that it may read. The members of a group share
//! the capabilities, and each has its own kinds.

use std::sync::Arc;

use proviso_artifacts::{FetchAccess, TenantLimits};
use proviso_core::Capabilities;

use crate::error::HostCallError;
use crate::kind::Kind;

/// The grants of one program. The default grants nothing.
#[derive(Clone, Debug, Default)]
pub struct ProgramGrants {
    pub capabilities: Capabilities,
    /// The path of `hostCapabilities` in the policy, for error messages.
    pub capabilities_field: String,
    /// The kinds that the program may read.
    pub resources: Vec<Kind>,
    /// The path of the program's own `contextAwareResources`, for error messages.
    pub resources_field: String,
    /// The namespace of the policy, which can access no other namespace; `None` for a `ClusterPolicy`.
    pub namespace: Option<String>,
    /// The names of the Secrets whose registry credentials may be used; empty means all Secrets that `tenant` permits.
    pub pull_secrets: Vec<String>,
    /// The limits of a namespaced policy in a cluster; `None` if there are none.
    pub tenant: Option<Arc<TenantLimits>>,
}

impl ProgramGrants {
    /// Returns the permissions of fetches from registries.
    pub(crate) fn fetch_access(&self) -> FetchAccess<'_> {
        FetchAccess { pull_secrets: &self.pull_secrets, tenant: self.tenant.as_deref() }
    }

    /// Returns a text that differs for different permissions of fetches.
    pub(crate) fn fetch_scope(&self) -> Vec<String> {
        let mut scope = self.pull_secrets.clone();
        if let Some(tenant) = &self.tenant {
            scope.push(format!("{tenant:?}"));
        }
        scope
    }

    /// Returns the text of an error for the program. The author of a namespaced policy does not learn what listens where.
    pub(crate) fn message(&self, error: &HostCallError) -> String {
        if self.tenant.is_some() { error.category() } else { error.to_string() }
    }

    /// Checks that the program may call a capability.
    pub(crate) fn check_call(&self, namespace: &str, operation: &str) -> Result<(), HostCallError> {
        if self.capabilities.allow(namespace, operation) {
            return Ok(());
        }
        Err(HostCallError::Capability {
            call: format!("{namespace}/{operation}"),
            field: self.capabilities_field.clone(),
        })
    }

    /// Checks that the program may read a kind, and returns its index in `resources`.
    pub(crate) fn check_kind(&self, kind: &Kind) -> Result<usize, HostCallError> {
        self.resources
            .iter()
            .position(|it| it == kind)
            .ok_or_else(|| HostCallError::Resource { kind: kind.clone(), field: self.resources_field.clone() })
    }

    /// Checks that the policy may access a namespace. A namespaced policy may access only its own.
    pub(crate) fn check_namespace(&self, wanted: &str) -> Result<(), HostCallError> {
        match &self.namespace {
            Some(own) if own != wanted => {
                Err(HostCallError::OtherNamespace { own: own.clone(), wanted: format!("the namespace {wanted}") })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grants(capabilities: &[&str], namespace: Option<&str>) -> ProgramGrants {
        let patterns: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
        ProgramGrants {
            capabilities: Capabilities::parse(&patterns).unwrap(),
            capabilities_field: "spec.hostCapabilities".to_owned(),
            resources: vec![Kind::new("v1", "Pod"), Kind::new("apps/v1", "Deployment")],
            resources_field: "spec.program.group.members.a.contextAwareResources".to_owned(),
            namespace: namespace.map(ToOwned::to_owned),
            pull_secrets: Vec::new(),
            tenant: None,
        }
    }

    #[test]
    fn calls_and_kinds_without_a_grant_are_refused() {
        assert!(ProgramGrants::default().check_call("net", "v1/dns_lookup_host").is_err());
        assert!(ProgramGrants::default().check_kind(&Kind::new("v1", "Pod")).is_err());
        let error = grants(&["oci/*"], None).check_call("kubernetes", "can_i").unwrap_err().to_string();
        assert_eq!(
            error,
            "kubernetes/can_i: this policy is not allowed to call this host capability: add it to spec.hostCapabilities"
        );
        let error = grants(&["*"], None).check_kind(&Kind::new("v1", "Secret")).unwrap_err().to_string();
        let expected = "this policy is not allowed to read Secret of v1: \
            add the kind to spec.program.group.members.a.contextAwareResources";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_kind_is_granted_for_one_version() {
        let grants = grants(&["*"], None);
        assert_eq!(grants.check_kind(&Kind::new("apps/v1", "Deployment")).unwrap(), 1);
        for (api_version, kind) in [("apps/v1beta1", "Deployment"), ("v1", "Deployment"), ("v1", "pod"), ("", "Pod")] {
            assert!(grants.check_kind(&Kind::new(api_version, kind)).is_err(), "{api_version} {kind}");
        }
    }

    proptest! {
        #[test]
        fn a_namespaced_policy_can_access_only_its_namespace(wanted in "[a-z]{0,3}") {
            prop_assert_eq!(grants(&["*"], Some("a")).check_namespace(&wanted).is_ok(), wanted == "a");
            prop_assert!(grants(&["*"], None).check_namespace(&wanted).is_ok());
        }
    }
}
