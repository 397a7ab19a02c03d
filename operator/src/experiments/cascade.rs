//! The experiments of one policy: they go with it.

use kube::api::{DeleteParams, ListParams};
use kube::{Client, ResourceExt as _};

use super::object::ExperimentObject;
use crate::objects::ignore_gone;

/// Those that can be read, in any order.
pub(crate) async fn of<K: ExperimentObject>(client: &Client, namespace: &str, policy: &str) -> kube::Result<Vec<K>> {
    let all = K::all(client, namespace).list(&ListParams::default()).await?;
    let known = all.items.into_iter().filter_map(|experiment| experiment.0.ok());
    Ok(known.filter(|experiment| experiment.spec().policy_ref.name == policy).collect())
}

/// Deletes them; whether none is left.
pub(crate) async fn delete<K: ExperimentObject>(client: &Client, namespace: &str, policy: &str) -> kube::Result<bool> {
    let experiments = of::<K>(client, namespace, policy).await?;
    let api = K::all(client, namespace);
    for experiment in experiments.iter().filter(|it| it.meta().deletion_timestamp.is_none()) {
        ignore_gone(api.delete(&experiment.name_any(), &DeleteParams::default()).await)?;
    }
    Ok(experiments.is_empty())
}
