//! What the programs of a spec may ask: the rights of each, and that what they read is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::Digest;
use proviso_core::Capabilities;
use proviso_crds::{ContextAwareResource, PolicySpec, Program as ProgramSpec, context};
use proviso_engines::{Deadline, Program};
use proviso_host::{AskError, Kind, ProgramHost, Rights, Trouble, World};

use super::{ModuleSource, PrepareError};

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

/// What one spec is made of, and what came together so far.
pub(super) struct Parts<'a> {
    gates: Gates,
    pub source: &'a ModuleSource,
    pub modules: BTreeMap<String, Digest>,
    hosts: Vec<Arc<ProgramHost>>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(gates: Gates, source: &'a ModuleSource) -> Self {
        Self { gates, source, modules: BTreeMap::new(), hosts: Vec::new() }
    }

    /// What the program of a member, or of the whole policy, may ask. `at` is where its `contextAwareResources` stand.
    pub(super) fn host(
        &mut self,
        world: &Arc<World>,
        at: &str,
        resources: &[ContextAwareResource],
        program: &ProgramSpec,
    ) -> Arc<ProgramHost> {
        let host = world.host(self.gates.rights(at, resources, program));
        self.hosts.push(Arc::clone(&host));
        host
    }

    /// Waits until what the programs read is there. What is only late keeps no policy back; what cannot come does, so that it
    /// says why before it denies everything. One that `is_known` to have worked is loaded all the same: without it, a replica
    /// would not be ready for all the others.
    pub(super) async fn ready(&self, is_known: bool) -> Result<(), PrepareError> {
        let deadline = Deadline::after(ARRIVAL);
        for host in &self.hosts {
            let Err((field, error)) = host.ready(deadline).await else { continue };
            let is_late = matches!(error, AskError::Trouble { trouble: Trouble::NotYet(_), .. });
            if !is_late && !is_known {
                return Err(PrepareError::Context { field, error: Box::new(error) });
            }
            tracing::warn!(field, %error, "what a policy reads is not there; it waits for it when it is asked");
        }
        Ok(())
    }
}

/// Gives a program its host: the one place where that is done.
pub(super) fn with_host(program: Program, host: Arc<ProgramHost>) -> Program {
    match program {
        Program::Wasm(it) => Program::Wasm(it.with_host(host)),
        Program::Rego(it) => Program::Rego(it.with_host(host)),
        Program::Cel(it) => Program::Cel(it.with_host(host)),
        // Its members have had theirs.
        group @ Program::Group(_) => group,
    }
}

/// Whether the same may be readable later: permissions and kinds come and go without the policy.
pub(super) fn is_passing(error: &AskError) -> bool {
    matches!(error, AskError::Trouble { trouble, .. } if !matches!(trouble, Trouble::ClusterScoped(_)))
}
