//! The experiments of a policy, which are deleted with the policy.

use std::sync::Arc;

use kube::api::{DeleteParams, ListParams};
use kube::{Client, Resource, ResourceExt as _};

use crate::context::Context;
use crate::kinds::{ExperimentObject, experiments_of};
use crate::malformed::MaybeMalformed;
use crate::objects::ignore_not_found;

/// Returns the readable experiments of a policy, from the cache.
pub(crate) fn cached<K: ExperimentObject>(
    policy: &str,
    namespace: Option<&str>,
    context: &Context,
) -> Vec<Arc<MaybeMalformed<K>>> {
    K::cache(&context.caches).reader().by_key(&experiments_of(policy, namespace))
}

/// Returns the readable experiments of a policy, from the API server. For replicas of the operator that do not lead,
/// and so have no caches.
pub(crate) async fn list<K: ExperimentObject>(client: &Client, namespace: &str, policy: &str) -> kube::Result<Vec<K>> {
    let all = K::all(client, namespace).list(&ListParams::default()).await?;
    let known = all.items.into_iter().filter_map(|experiment| experiment.0.ok());
    Ok(known.filter(|experiment| experiment.spec().policy_ref.name == policy).collect())
}

/// Deletes the experiments of a policy. Returns whether none is left.
pub(crate) async fn delete<K: ExperimentObject>(policy: &impl Resource, context: &Context) -> kube::Result<bool> {
    let namespace = policy.namespace();
    let experiments = cached::<K>(&policy.name_any(), namespace.as_deref(), context);
    let api = K::all(&context.client, &namespace.unwrap_or_default());
    for experiment in experiments.iter().filter(|it| it.meta().deletion_timestamp.is_none()) {
        ignore_not_found(api.delete(&experiment.name_any(), &DeleteParams::default()).await)?;
    }
    Ok(experiments.is_empty())
}
