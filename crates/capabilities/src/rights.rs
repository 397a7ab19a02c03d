//! What one program may ask: the two gates. Each member of a group has its own second one.

use proviso_core::Capabilities;

use crate::error::AskError;
use crate::kind::Kind;

/// What one program may ask. Nothing, by default.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    pub capabilities: Capabilities,
    /// Where they stand in the policy: the path of `hostCapabilities`.
    pub capabilities_field: String,
    /// The kinds that it may read.
    pub resources: Vec<Kind>,
    /// Where these stand: the path of the `contextAwareResources` of the very program.
    pub resources_field: String,
    /// The namespace of the policy, beyond which it sees nothing; none for a `ClusterPolicy`.
    pub namespace: Option<String>,
    /// The Secrets with whose credentials registries are asked; none named means any.
    pub pull_secrets: Vec<String>,
}

impl Rights {
    /// The first gate.
    pub(crate) fn check_call(&self, namespace: &str, operation: &str) -> Result<(), AskError> {
        if self.capabilities.allow(namespace, operation) {
            return Ok(());
        }
        Err(AskError::Capability { call: format!("{namespace}/{operation}"), field: self.capabilities_field.clone() })
    }

    /// The second gate: which of the resources this is.
    pub(crate) fn check_kind(&self, kind: &Kind) -> Result<usize, AskError> {
        self.resources
            .iter()
            .position(|it| it == kind)
            .ok_or_else(|| AskError::Resource { kind: kind.clone(), field: self.resources_field.clone() })
    }

    /// What a policy of a namespace may see: its own, and nothing else.
    pub(crate) fn check_namespace(&self, wanted: &str) -> Result<(), AskError> {
        match &self.namespace {
            Some(own) if own != wanted => {
                Err(AskError::OtherNamespace { own: own.clone(), wanted: format!("the namespace {wanted}") })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rights(capabilities: &[&str], namespace: Option<&str>) -> Rights {
        let patterns: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
        Rights {
            capabilities: Capabilities::parse(&patterns).unwrap(),
            capabilities_field: "spec.hostCapabilities".to_owned(),
            resources: vec![Kind::new("v1", "Pod"), Kind::new("apps/v1", "Deployment")],
            resources_field: "spec.program.group.members.a.contextAwareResources".to_owned(),
            namespace: namespace.map(ToOwned::to_owned),
            pull_secrets: Vec::new(),
        }
    }

    #[test]
    fn nothing_is_allowed_that_is_not_given() {
        assert!(Rights::default().check_call("net", "v1/dns_lookup_host").is_err());
        assert!(Rights::default().check_kind(&Kind::new("v1", "Pod")).is_err());
        let error = rights(&["oci/*"], None).check_call("kubernetes", "can_i").unwrap_err().to_string();
        assert_eq!(error, "kubernetes/can_i: this policy may not call it: name it in spec.hostCapabilities");
        let error = rights(&["*"], None).check_kind(&Kind::new("v1", "Secret")).unwrap_err().to_string();
        let wanted =
            "this policy may not read Secret of v1: name it in spec.program.group.members.a.contextAwareResources";
        assert_eq!(error, wanted);
    }

    #[test]
    fn a_kind_is_one_of_its_version() {
        let rights = rights(&["*"], None);
        assert_eq!(rights.check_kind(&Kind::new("apps/v1", "Deployment")).unwrap(), 1);
        for (api_version, kind) in [("apps/v1beta1", "Deployment"), ("v1", "Deployment"), ("v1", "pod"), ("", "Pod")] {
            assert!(rights.check_kind(&Kind::new(api_version, kind)).is_err(), "{api_version} {kind}");
        }
    }

    proptest! {
        #[test]
        fn a_policy_of_a_namespace_sees_no_other(wanted in "[a-z]{0,3}") {
            prop_assert_eq!(rights(&["*"], Some("a")).check_namespace(&wanted).is_ok(), wanted == "a");
            prop_assert!(rights(&["*"], None).check_namespace(&wanted).is_ok());
        }
    }
}
