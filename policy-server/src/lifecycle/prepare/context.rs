//! The host of each program of a spec: the permissions of the program, and the objects that it reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::{Digest, TenantLimits};
use proviso_capabilities::{Grants, HostCallError, HostContext, KindUnavailable, PolicyHost};
use proviso_core::PolicyId;
use proviso_crds::{ContextAwareResource, Program as ProgramSpec, Tenants};
use proviso_engines::Deadline;

use super::error::PrepareError;
use crate::lifecycle::desired::ModuleSource;
use crate::lifecycle::preparations::Permit;
use crate::tenants::fetch_limits;

/// The time that a preparation waits for the objects that the policy reads. After it, the policy goes live without them, and its
/// evaluations wait for the objects.
const CONTEXT_TIMEOUT: Duration = Duration::from_secs(30);

/// The permissions, modules, hosts and the permit of one preparation.
pub(super) struct Parts<'a> {
    pub policy: &'a PolicyId,
    grants: Grants,
    /// The limits of a namespaced policy, and of its fetches; `None` if there are none.
    pub tenant: Option<(Tenants, Arc<TenantLimits>)>,
    pub source: &'a ModuleSource,
    pub modules: BTreeMap<String, Digest>,
    hosts: Vec<Arc<PolicyHost>>,
    pub permit: Permit,
}

impl<'a> Parts<'a> {
    pub(super) fn new(
        policy: &'a PolicyId,
        grants: Grants,
        limits: Option<Tenants>,
        source: &'a ModuleSource,
        permit: Permit,
    ) -> Self {
        let tenant = limits.map(|tenants| {
            let limits = Arc::new(fetch_limits(&tenants));
            (tenants, limits)
        });
        let grants = match &tenant {
            Some((tenants, limits)) => grants.limited_to(&tenants.capabilities(), Arc::clone(limits)),
            None => grants,
        };
        Self { policy, grants, tenant, source, modules: BTreeMap::new(), hosts: Vec::new(), permit }
    }

    /// Makes the host of the program of a policy, or of a member of a group. `at` is the field that holds the
    /// `contextAwareResources` of the program.
    pub(super) fn host(
        &mut self,
        host_context: &Arc<HostContext>,
        at: &str,
        resources: &[ContextAwareResource],
        program: &ProgramSpec,
    ) -> Arc<PolicyHost> {
        let host = host_context.host(self.grants.for_program(at, resources, program));
        self.hosts.push(Arc::clone(&host));
        host
    }

    /// Waits for the objects that the programs read. Objects that only arrive late do not fail the preparation. Objects that
    /// cannot arrive fail it, so that the status of the revision gives the reason and the policy does not go live and deny
    /// everything. A revision that `was_prepared` to have worked is loaded in any case: otherwise the replica would not become ready,
    /// and could not serve the other policies either.
    pub(super) async fn wait_for_context(&self, was_prepared: bool) -> Result<(), PrepareError> {
        let deadline = Deadline::after(CONTEXT_TIMEOUT);
        for host in &self.hosts {
            let Err((field, error)) = host.ready(deadline).await else { continue };
            let is_late = matches!(error, HostCallError::KindUnavailable { cause: KindUnavailable::NotReady(_), .. });
            if !is_late && !was_prepared {
                return Err(PrepareError::Context { field, error: Box::new(error) });
            }
            tracing::warn!(field, %error, "the objects that a policy reads are missing; its evaluations wait for them");
        }
        Ok(())
    }
}
