//! What a policy's spec gives its programs: the two gates, from its fields.

use proviso_core::Capabilities;
use proviso_crds::validation::FieldError;
use proviso_crds::{ContextAwareResource, PolicySpec, Program, context};

use crate::kind::Kind;
use crate::rights::Rights;

/// What is the same for all programs of a policy.
#[derive(Clone, Debug)]
pub struct Gates {
    capabilities: Capabilities,
    at: String,
    namespace: Option<String>,
}

impl Gates {
    /// Reads them. `at` is where the spec stands in its object, `namespace` that of the policy, if it has one.
    ///
    /// # Errors
    /// When they make no sense.
    pub fn read(at: &str, namespace: Option<&str>, spec: &PolicySpec) -> Result<Self, FieldError> {
        if let Some(error) = context::check(at, namespace, spec).into_iter().next() {
            return Err(error);
        }
        // The check has read them once.
        let capabilities = Capabilities::parse(&spec.host_capabilities).unwrap_or_default();
        Ok(Self { capabilities, at: at.to_owned(), namespace: namespace.map(ToOwned::to_owned) })
    }

    /// Those of one program; `at` is where its `contextAwareResources` stand.
    #[must_use]
    pub fn rights(&self, at: &str, resources: &[ContextAwareResource], program: &Program) -> Rights {
        let secrets = match program {
            Program::Wasm(wasm) => wasm.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
            Program::Rego(_) | Program::Cel(_) | Program::Group(_) => Vec::new(),
        };
        Rights {
            capabilities: self.capabilities.clone(),
            capabilities_field: format!("{}.hostCapabilities", self.at),
            resources: resources.iter().map(Kind::from).collect(),
            resources_field: format!("{at}.contextAwareResources"),
            namespace: self.namespace.clone(),
            pull_secrets: secrets,
        }
    }
}
