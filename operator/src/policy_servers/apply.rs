//! Applies the built objects to the cluster.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, DynamicObject, Patch};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Resource as _, ResourceExt as _};
use proviso_crds::PolicyServer;
use proviso_crds::names::SERVER_LABEL;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::build;
use super::context::{Applied, Context};
use super::names;
use crate::cache::{Cache, Cached, lock};
use crate::context::Error;
use crate::objects::{self, ignore_not_found};

/// Applies the objects in order. Skips the objects that have not changed since the last apply.
pub(super) async fn objects(server: &PolicyServer, objects: &[Value], context: &Context) -> Result<(), Error> {
    for object in objects {
        apply_object(object, context).await?;
    }
    tracing::debug!(policy_server = server.name_any(), "applied");
    Ok(())
}

async fn apply_object(object: &Value, context: &Context) -> Result<(), Error> {
    let caches = &context.caches;
    match object["kind"].as_str().unwrap_or_default() {
        "StatefulSet" => apply(object, &caches.stateful_sets, &context.namespaced(), context).await,
        "Service" => apply(object, &caches.services, &context.namespaced(), context).await,
        "PodDisruptionBudget" => apply(object, &caches.disruption_budgets, &context.namespaced(), context).await,
        "ConfigMap" => apply(object, &caches.config_maps, &context.namespaced(), context).await,
        "PersistentVolumeClaim" => apply(object, &caches.claims, &context.namespaced(), context).await,
        "ServiceAccount" => apply(object, &caches.service_accounts, &context.namespaced(), context).await,
        "Role" => apply(object, &caches.roles, &context.namespaced(), context).await,
        "RoleBinding" => apply(object, &caches.role_bindings, &context.namespaced(), context).await,
        "ClusterRoleBinding" => {
            apply(object, &caches.cluster_role_bindings, &Api::all(context.client.clone()), context).await
        }
        _ => Err(Error::Incomplete("kind that the operator applies")),
    }
}

async fn apply<K>(object: &Value, cache: &Cache<K>, api: &Api<K>, context: &Context) -> Result<(), Error>
where
    K: Cached<Sent = K> + Serialize + DeserializeOwned,
{
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let key = (K::kind(&()).into_owned(), name.to_owned());
    if let Some(found) = cache.reader().get(name, metadata["namespace"].as_str()) {
        let current = Applied { desired: object.clone(), content: content(&*found)? };
        if lock(&context.applied).get(&key) == Some(&current) {
            return Ok(());
        }
    }
    let patch = async {
        let failed = |error| Error::Apply { object: format!("{} {name}", K::kind(&())), error };
        let answer = patch(object, name, api).await.map_err(failed)?;
        let last = Applied { desired: object.clone(), content: content(&answer)? };
        lock(&context.applied).insert(key, last);
        Ok(answer)
    };
    cache.write(patch).await
}

async fn patch<K>(object: &Value, name: &str, api: &Api<K>) -> kube::Result<K>
where
    K: Cached + DeserializeOwned,
{
    let (params, patch) = (objects::apply_params(), Patch::Apply(object));
    match api.patch(name, &params, &patch).await {
        // The roleRef of a binding is immutable, and another client has created a different binding of this name.
        Err(kube::Error::Api(status)) if status.is_invalid() && K::kind(&()).ends_with("RoleBinding") => {
            ignore_not_found(api.delete(name, &DeleteParams::default()).await)?;
            api.patch(name, &params, &patch).await
        }
        result => result,
    }
}

/// Returns an object without its status, and without the fields that change with every write.
fn content(object: &impl Serialize) -> Result<Value, serde_json::Error> {
    let mut content = serde_json::to_value(object)?;
    if let Some(fields) = content.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = content["metadata"].as_object_mut() {
        metadata.retain(|field, _| !["generation", "managedFields", "resourceVersion"].contains(&field.as_str()));
    }
    Ok(content)
}

fn api(api_version: &str, kind: &str, context: &Context) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind == "ClusterRoleBinding" {
        Api::all_with(context.client.clone(), &resource)
    } else {
        Api::namespaced_with(context.client.clone(), &context.namespace, &resource)
    }
}

/// Deletes every object of the policy server of this name. An object of another owner with the same name stays.
pub(super) async fn delete(server: &str, context: &Context) -> Result<(), Error> {
    for (api_version, kind, name) in build::parts(server) {
        let api = api(api_version, kind, context);
        // Asks the API server instead of the caches: the watch may not have delivered an object yet, and nothing would
        // delete that object later.
        let Some(found) = api.get_metadata_opt(&name).await? else { continue };
        if found.labels().get(SERVER_LABEL).is_some_and(|label| label == server) {
            objects::delete(&api, &found).await?;
        }
    }
    tracing::info!(policy_server = server, "policy server deleted, because no policy needs it");
    Ok(())
}

/// Deletes the claim of the cache if the cache is stored elsewhere now. Kubernetes keeps the claim until the pods
/// that use it are replaced.
pub(super) async fn delete_unused_claim(server: &PolicyServer, context: &Context) -> Result<(), Error> {
    let is_desired = server.spec.cache.as_ref().is_some_and(|cache| cache.persistent_volume_claim.is_some());
    let own = server.name_any();
    let claim = context.caches.claims.reader().get(&names::cache_name(&own), Some(&context.namespace));
    let Some(claim) = claim.filter(|claim| !is_desired && claim.meta().deletion_timestamp.is_none()) else {
        return Ok(());
    };
    if claim.labels().get(SERVER_LABEL) != Some(&own) {
        return Ok(());
    }
    Ok(objects::delete(&context.namespaced::<PersistentVolumeClaim>(), &*claim).await?)
}
