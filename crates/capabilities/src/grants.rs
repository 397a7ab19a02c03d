//! The grants of a policy's spec: the host capabilities and kinds that its programs may use.

use std::sync::Arc;

use proviso_artifacts::TenantLimits;
use proviso_core::Capabilities;
use proviso_crds::validation::FieldError;
use proviso_crds::{ContextAwareResource, PolicySpec, Program, context};

use crate::kind::Kind;
use crate::program_grants::ProgramGrants;

/// The grants that all programs of a policy share.
#[derive(Clone, Debug)]
pub struct Grants {
    capabilities: Capabilities,
    /// The path of the spec in its object.
    at: String,
    namespace: Option<String>,
    /// The limits of fetches for a namespaced policy; `None` if there are none.
    tenant: Option<Arc<TenantLimits>>,
}

impl Grants {
    /// Reads the grants of a spec. `at` is the path of the spec in its object; `namespace` is `None` for a `ClusterPolicy`.
    ///
    /// # Errors
    /// Returns the first invalid field, such as an unknown capability or a kind that the policy cannot read.
    pub fn read(at: &str, namespace: Option<&str>, spec: &PolicySpec) -> Result<Self, FieldError> {
        if let Some(error) = context::check(at, namespace, spec).into_iter().next() {
            return Err(error);
        }
        // `context::check` has already parsed the patterns, so this does not fail.
        let capabilities = Capabilities::parse(&spec.host_capabilities).unwrap_or_default();
        Ok(Self { capabilities, at: at.to_owned(), namespace: namespace.map(ToOwned::to_owned), tenant: None })
    }

    /// Returns these grants limited to what a policy server permits for namespaced policies.
    #[must_use]
    pub fn limited_to(self, permitted: &Capabilities, tenant: Arc<TenantLimits>) -> Self {
        Self { capabilities: self.capabilities.intersection(permitted), tenant: Some(tenant), ..self }
    }

    /// Returns the grants of one program. `at` is the path of the object that has its `contextAwareResources`.
    #[must_use]
    pub fn for_program(&self, at: &str, resources: &[ContextAwareResource], program: &Program) -> ProgramGrants {
        let secrets = match program {
            Program::Wasm(wasm) => wasm.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
            Program::None | Program::Rego(_) | Program::Cel(_) | Program::Group(_) | Program::Requests(_) => Vec::new(),
        };
        ProgramGrants {
            capabilities: self.capabilities.clone(),
            capabilities_field: format!("{}.hostCapabilities", self.at),
            resources: resources.iter().map(Kind::from).collect(),
            resources_field: format!("{at}.contextAwareResources"),
            namespace: self.namespace.clone(),
            pull_secrets: secrets,
            tenant: self.tenant.clone(),
        }
    }
}
