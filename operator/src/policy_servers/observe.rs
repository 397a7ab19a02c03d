//! The policies that need a policy server.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::names::SERVER_LABEL;
use proviso_crds::{ClusterPolicy, Policy, PolicyRevision};

use super::context::Context;
use crate::cache::Cached as _;
use crate::guarded::Guarded;
use crate::kinds::PolicyObject;
use crate::revisions::Revision;

/// The objects by which policies need a policy server.
struct Objects {
    policies: Vec<Arc<Guarded<Policy>>>,
    cluster_policies: Vec<Arc<Guarded<ClusterPolicy>>>,
    revisions: Vec<Arc<Guarded<Revision>>>,
}

/// The policies that no policy server would evaluate without this one.
pub(super) async fn users(own: &str, context: &Context) -> kube::Result<Vec<String>> {
    let caches = &context.caches;
    let known = Objects {
        policies: caches.policies.reader().store().state(),
        cluster_policies: caches.cluster_policies.reader().store().state(),
        revisions: caches.revisions.reader().store().state(),
    };
    let users = known.users(own);
    if !users.is_empty() {
        return Ok(users);
    }
    // Watches may be late. Before anything is deleted, the API server says so itself.
    let (all, of_server) = (ListParams::default(), ListParams::default().labels(&format!("{SERVER_LABEL}={own}")));
    let policies = Api::<Guarded<Policy>>::all(context.client.clone());
    let cluster_policies = Api::<Guarded<ClusterPolicy>>::all(context.client.clone());
    let revisions = context.namespaced::<Guarded<PolicyRevision>>();
    let (policies, cluster_policies, revisions) =
        tokio::try_join!(policies.list(&all), cluster_policies.list(&all), revisions.list(&of_server))?;
    let listed = Objects {
        policies: policies.items.into_iter().map(Arc::new).collect(),
        cluster_policies: cluster_policies.items.into_iter().map(Arc::new).collect(),
        revisions: revisions.items.into_iter().map(|it| Arc::new(Guarded::<Revision>::from_sent(it))).collect(),
    };
    Ok(listed.users(own))
}

impl Objects {
    /// The policies that name the policy server; and the policies that have moved on to another and are not served there yet.
    fn users(&self, own: &str) -> Vec<String> {
        // The spec of a policy that nobody can read is not known. Its revisions are: they serve it.
        let revisions = self.revisions.iter().filter_map(|revision| {
            let Ok(known) = &revision.0 else {
                let is_user = revision.labels().get(SERVER_LABEL).is_some_and(|server| server == own);
                return is_user.then(|| format!("malformed {}", revision.name_any()));
            };
            let policy = &known.policy_ref;
            let is_user = known.enabled && known.policy_server == own;
            is_user.then(|| id(policy.namespace.as_deref(), &policy.name))
        });
        let mut users: Vec<_> =
            of_kind(&self.policies, own).chain(of_kind(&self.cluster_policies, own)).chain(revisions).collect();
        users.sort_unstable();
        users.dedup();
        users
    }
}

fn of_kind<K: PolicyObject>(policies: &[Arc<Guarded<K>>], own: &str) -> impl Iterator<Item = String> {
    let known = policies.iter().filter_map(|policy| policy.0.as_ref().ok());
    let of_server = known.filter(move |policy| policy.spec().policy_server == own);
    of_server.map(|policy| id(policy.namespace().as_deref(), &policy.name_any()))
}

fn id(namespace: Option<&str>, name: &str) -> String {
    PolicyId::new(namespace, name).map_or_else(|_| name.to_owned(), |id| id.to_string())
}
