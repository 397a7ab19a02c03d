//! The policies that need a policy server.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::names::SERVER_LABEL;
use proviso_crds::{ClusterPolicy, Policy, PolicyRevision};

use super::context::Context;
use crate::cache::Cached as _;
use crate::kinds::PolicyObject;
use crate::malformed::MaybeMalformed;
use crate::revisions::Revision;

/// The objects from which the operator derives which policies need a policy server.
struct Objects {
    policies: Vec<Arc<MaybeMalformed<Policy>>>,
    cluster_policies: Vec<Arc<MaybeMalformed<ClusterPolicy>>>,
    revisions: Vec<Arc<MaybeMalformed<Revision>>>,
}

/// Returns the policies that need this policy server, because no other one evaluates them.
pub(super) async fn dependents(own: &str, context: &Context) -> kube::Result<Vec<String>> {
    let caches = &context.caches;
    let known = Objects {
        policies: caches.policies.reader().store().state(),
        cluster_policies: caches.cluster_policies.reader().store().state(),
        revisions: caches.revisions.reader().store().state(),
    };
    let dependents = known.dependents(own);
    if !dependents.is_empty() {
        return Ok(dependents);
    }
    // Watches may be late, so the API server has to confirm the result before a deletion.
    let (all, of_server) = (ListParams::default(), ListParams::default().labels(&format!("{SERVER_LABEL}={own}")));
    let policies = Api::<MaybeMalformed<Policy>>::all(context.client.clone());
    let cluster_policies = Api::<MaybeMalformed<ClusterPolicy>>::all(context.client.clone());
    let revisions = context.namespaced::<MaybeMalformed<PolicyRevision>>();
    let (policies, cluster_policies, revisions) =
        tokio::try_join!(policies.list(&all), cluster_policies.list(&all), revisions.list(&of_server))?;
    let listed = Objects {
        policies: policies.items.into_iter().map(Arc::new).collect(),
        cluster_policies: cluster_policies.items.into_iter().map(Arc::new).collect(),
        revisions: revisions.items.into_iter().map(|it| Arc::new(MaybeMalformed::<Revision>::from_sent(it))).collect(),
    };
    Ok(listed.dependents(own))
}

impl Objects {
    /// Returns the policies that name the policy server, and the policies that have moved to another one and are not
    /// served there yet.
    fn dependents(&self, own: &str) -> Vec<String> {
        // The spec of a malformed policy is unknown, but its revisions name the policy server that serves it.
        let revisions = self.revisions.iter().filter_map(|revision| {
            let Ok(known) = &revision.0 else {
                let is_dependent = revision.labels().get(SERVER_LABEL).is_some_and(|server| server == own);
                return is_dependent.then(|| format!("malformed {}", revision.name_any()));
            };
            let policy = &known.policy_ref;
            let is_dependent = known.enabled && known.policy_server == own && !known.is_configuration();
            is_dependent.then(|| id(policy.namespace.as_deref(), &policy.name))
        });
        let mut dependents: Vec<_> =
            of_kind(&self.policies, own).chain(of_kind(&self.cluster_policies, own)).chain(revisions).collect();
        dependents.sort_unstable();
        dependents.dedup();
        dependents
    }
}

fn of_kind<K: PolicyObject>(policies: &[Arc<MaybeMalformed<K>>], own: &str) -> impl Iterator<Item = String> {
    let known = policies.iter().filter_map(|policy| policy.0.as_ref().ok());
    let of_server = known.filter(move |policy| policy.spec().is_evaluated_by(own));
    of_server.map(|policy| id(policy.namespace().as_deref(), &policy.name_any()))
}

fn id(namespace: Option<&str>, name: &str) -> String {
    PolicyId::new(namespace, name).map_or_else(|_| name.to_owned(), |id| id.to_string())
}
