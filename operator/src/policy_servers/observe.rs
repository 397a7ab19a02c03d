//! What there is in the cluster about one policy server, as far as it decides what is made and said.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::{ClusterPolicy, Policy, PolicyRevision, PolicyServer};

use super::secrets::Found;
use super::{Context, Error, build};
use crate::authority;
use crate::guarded::Guarded;
use proviso_crds::names::SERVER_LABEL;

pub(super) struct Seen {
    pub secrets: Found,
    pub pods: Vec<Pod>,
    /// The claim that the operator made, whether it is still wanted or not.
    pub claim: Option<PersistentVolumeClaim>,
}

impl Seen {
    pub async fn fetch(server: &PolicyServer, context: &Context) -> Result<Self, Error> {
        let own = server.name_any();
        let (tls, signing, cache) = (build::tls_name(&own), build::signing_name(&own), build::cache_name(&own));
        let (secrets, pods) = (context.secrets(), context.namespaced::<Pod>());
        let claims = context.namespaced::<PersistentVolumeClaim>();
        let of_server = ListParams::default().labels(&format!("{SERVER_LABEL}={own}"));
        let (authority, tls, signing, pods, claim) = tokio::try_join!(
            secrets.get_opt(authority::SECRET),
            secrets.get_opt(&tls),
            secrets.get_opt(&signing),
            pods.list(&of_server),
            claims.get_opt(&cache),
        )?;
        let secrets = Found { authority, tls, signing };
        let claim = claim.filter(|claim| claim.labels().get(SERVER_LABEL) == Some(&own));
        Ok(Self { secrets, pods: pods.items, claim })
    }
}

/// The policies that would have nobody to evaluate them without this policy server: those that name it, and those that
/// have moved on to another and are not served there yet.
pub(super) async fn users(own: &str, context: &Context) -> Result<Vec<String>, Error> {
    let all = ListParams::default();
    let of_server = ListParams::default().labels(&format!("{SERVER_LABEL}={own}"));
    let (policies, cluster_policies) = (
        Api::<Guarded<Policy>>::all(context.client.clone()),
        Api::<Guarded<ClusterPolicy>>::all(context.client.clone()),
    );
    let revisions = context.namespaced::<Guarded<PolicyRevision>>();
    let (policies, cluster_policies, revisions) =
        tokio::try_join!(policies.list(&all), cluster_policies.list(&all), revisions.list(&of_server))?;
    // What a policy asks for that nobody can read is not known; what serves it is: its revisions.
    let (policies, _) = context.reports.sort(policies.items.into_iter().map(Arc::new).collect()).await;
    let (cluster_policies, _) = context.reports.sort(cluster_policies.items.into_iter().map(Arc::new).collect()).await;
    let (revisions, malformed) = context.reports.sort(revisions.items.into_iter().map(Arc::new).collect()).await;
    let policies = policies.iter().filter(|policy| policy.spec.policy_server == own);
    let cluster_policies = cluster_policies.iter().filter(|policy| policy.spec.0.policy_server == own);
    let revisions = revisions.iter().filter(|revision| revision.spec.enabled);
    let mut users: Vec<_> = policies
        .map(|policy| id(policy.namespace().as_deref(), &policy.name_any()))
        .chain(cluster_policies.map(|policy| id(None, &policy.name_any())))
        .chain(revisions.map(|revision| {
            let policy = &revision.spec.policy_ref;
            id(policy.namespace.as_deref(), &policy.name)
        }))
        .chain(malformed.iter().map(|it| format!("malformed {}", it.metadata.name.as_deref().unwrap_or_default())))
        .collect();
    users.sort_unstable();
    users.dedup();
    Ok(users)
}

fn id(namespace: Option<&str>, name: &str) -> String {
    PolicyId::new(namespace, name).map_or_else(|_| name.to_owned(), |id| id.to_string())
}
