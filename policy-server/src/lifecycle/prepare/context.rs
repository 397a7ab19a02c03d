//! What the programs of a spec may ask: the rights of each, and that what they read is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::Digest;
use proviso_capabilities::{AskError, Gates, ProgramHost, Trouble, World};
use proviso_crds::{ContextAwareResource, Program as ProgramSpec};
use proviso_engines::Deadline;

use super::error::PrepareError;
use crate::lifecycle::desired::ModuleSource;

/// How long the objects that a policy reads may take to arrive before it goes live without them: who asks for them then waits.
const ARRIVAL: Duration = Duration::from_secs(30);

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
