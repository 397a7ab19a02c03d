//! What the programs of a spec may ask: the rights of each, and that what they read is there.

use std::sync::Arc;
use std::time::Duration;

use proviso_core::Capabilities;
use proviso_crds::{ContextAwareResource, PolicySpec, Program as ProgramSpec, context};
use proviso_engines::{Deadline, Program};
use proviso_host::{AskError, Kind, ProgramHost, Rights, Trouble};

use super::PrepareError;

/// How long the objects that a policy reads may take to arrive before it goes live without them: who asks for them then waits.
const ARRIVAL: Duration = Duration::from_secs(30);

/// What is the same for all programs of a policy.
pub(super) struct Gates {
    capabilities: Capabilities,
    at: String,
    namespace: Option<String>,
}

impl Gates {
    /// Reads them, if they make sense.
    pub(super) fn read(at: &str, namespace: Option<&str>, spec: &PolicySpec) -> Result<Self, PrepareError> {
        if let Some(error) = context::check(at, namespace, spec).into_iter().next() {
            return Err(PrepareError::Field(error));
        }
        // The check has read them once.
        let capabilities = Capabilities::parse(&spec.host_capabilities).unwrap_or_default();
        Ok(Self { capabilities, at: at.to_owned(), namespace: namespace.map(ToOwned::to_owned) })
    }

    /// Those of one program; `at` is where its `contextAwareResources` stand.
    pub(super) fn rights(&self, at: &str, resources: &[ContextAwareResource], program: &ProgramSpec) -> Rights {
        let secrets = match program {
            ProgramSpec::Wasm(wasm) => wasm.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
            ProgramSpec::Rego(_) | ProgramSpec::Cel(_) | ProgramSpec::Group(_) => Vec::new(),
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

/// Gives a program its host: the one place where that is done.
#[allow(clippy::needless_pass_by_value, reason = "programs keep it")]
pub(super) fn with_host(program: Program, _host: Arc<ProgramHost>) -> Program {
    program
}

/// Waits until what the programs read is there. What is only late keeps no policy back; what cannot come does, so that it says
/// why before it denies everything.
pub(super) async fn ready(hosts: &[Arc<ProgramHost>]) -> Result<(), PrepareError> {
    let deadline = Deadline::after(ARRIVAL);
    for host in hosts {
        match host.ready(deadline).await {
            Ok(()) => {}
            Err((field, error @ AskError::Trouble { trouble: Trouble::NotYet(_), .. })) => {
                tracing::warn!(field, %error, "what a policy reads has not arrived yet; it waits when it is asked");
            }
            Err((field, error)) => return Err(PrepareError::Context { field, error: Box::new(error) }),
        }
    }
    Ok(())
}

/// Whether the same may be readable later: permissions and kinds come and go without the policy.
pub(super) fn is_passing(error: &AskError) -> bool {
    matches!(error, AskError::Trouble { trouble, .. } if !matches!(trouble, Trouble::ClusterScoped(_)))
}
