//! Applies the built objects to the cluster.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use kube::api::{DeleteParams, DynamicObject, Patch};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::events::EventType;
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

/// The kinds of objects without which a new pod does not become Ready.
const NEEDED_BY_PODS: [&str; 6] =
    ["ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding", "ConfigMap", "PersistentVolumeClaim"];

/// An object that the API server has refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub object: ObjectReference,
    pub error: Error,
    /// True if the cluster has no object of this name either, so that it has no earlier version.
    is_missing: bool,
}

impl Refusal {
    /// Returns the object and the message of the API server; `None` if another writer was faster, which is normal.
    pub(super) fn message(&self) -> Option<String> {
        (!self.error.is_race()).then(|| objects::event_note(&self.error.to_string()))
    }
}

/// Applies the objects in order. Skips the objects that have not changed since the last apply. Returns the objects that
/// the API server refuses. They do not stop the others: a claim that cannot be changed must not keep a Service, a
/// budget or an image from being updated.
pub(super) async fn objects(
    server: &PolicyServer,
    objects: &[Value],
    context: &Context,
) -> Result<Vec<Refusal>, Error> {
    let mut refusals = Vec::new();
    let mut can_start_pods = true;
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        // With a new template, Kubernetes would replace a Ready replica by a pod that cannot start.
        if kind == "StatefulSet" && !can_start_pods {
            continue;
        }
        let Some(refusal) = apply_object(kind, object, context).await? else { continue };
        can_start_pods &= !(refusal.is_missing && NEEDED_BY_PODS.contains(&kind));
        refusals.push(refusal);
    }
    tracing::debug!(policy_server = server.name_any(), refused = refusals.len(), "applied");
    Ok(refusals)
}

/// Publishes an Event of the policy server for each refused object.
pub(super) async fn report(server: &PolicyServer, refusals: &[Refusal], context: &Context) {
    for refusal in refusals {
        let Some(message) = refusal.message() else { continue };
        let (reason, object) = (refusal.error.reason(), Some(refusal.object.clone()));
        // The status has the message too.
        let _ = context.record_related(server, EventType::Warning, reason.as_str(), &message, object).await;
    }
}

async fn apply_object(kind: &str, object: &Value, context: &Context) -> Result<Option<Refusal>, Error> {
    let caches = &context.caches;
    match kind {
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

/// Returns true if the API server has refused an object. Returns false if the API server does not answer or is
/// overloaded: then the other objects would fail too.
pub(super) fn is_refusal(error: &Error) -> bool {
    let Error::Apply { error: kube::Error::Api(status), .. } = error else { return false };
    ![429, 503, 504].contains(&status.code)
}

/// Applies an object. Returns the object if the API server refuses it.
async fn apply<K>(object: &Value, cache: &Cache<K>, api: &Api<K>, context: &Context) -> Result<Option<Refusal>, Error>
where
    K: Cached<Sent = K> + Serialize + DeserializeOwned,
{
    let metadata = &object["metadata"];
    let (name, namespace) = (metadata["name"].as_str().unwrap_or_default(), metadata["namespace"].as_str());
    let key = (K::kind(&()).into_owned(), name.to_owned());
    if let Some(found) = cache.reader().get(name, namespace) {
        let current = Applied { desired: object.clone(), content: content(&*found)? };
        if lock(&context.applied).get(&key) == Some(&current) {
            return Ok(None);
        }
    }
    let patch = async {
        let failed = |error| Error::Apply { object: format!("{} {name}", K::kind(&())), error };
        let answer = patch(object, name, api).await.map_err(failed)?;
        let last = Applied { desired: object.clone(), content: content(&answer)? };
        lock(&context.applied).insert(key, last);
        Ok(answer)
    };
    let written: Result<(), Error> = cache.write(patch).await;
    match written {
        Ok(()) => Ok(None),
        Err(error) if is_refusal(&error) => {
            let is_missing = cache.reader().get(name, namespace).is_none();
            Ok(Some(Refusal { object: reference(object), error, is_missing }))
        }
        Err(error) => Err(error),
    }
}

fn reference(object: &Value) -> ObjectReference {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let metadata = &object["metadata"];
    ObjectReference {
        api_version: text(&object["apiVersion"]),
        kind: text(&object["kind"]),
        name: text(&metadata["name"]),
        namespace: text(&metadata["namespace"]),
        ..ObjectReference::default()
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn overload_is_no_refusal_and_a_race_is_not_reported() {
        let reported = Some("Service a: no");
        for (code, reason, expected, message) in [
            (403, "Forbidden", true, reported),
            (409, "Conflict", true, None),
            (422, "Invalid", true, reported),
            // An admission webhook does not answer.
            (500, "InternalError", true, reported),
            (429, "TooManyRequests", false, reported),
            (503, "ServiceUnavailable", false, reported),
            (504, "Timeout", false, reported),
        ] {
            let status = json!({"status": "Failure", "code": code, "reason": reason, "message": "no"});
            let error = kube::Error::Api(serde_json::from_value(status).unwrap());
            let error = Error::Apply { object: "Service a".to_owned(), error };
            assert_eq!(is_refusal(&error), expected, "{reason}");
            let refusal = Refusal { object: ObjectReference::default(), error, is_missing: false };
            assert_eq!(refusal.message().as_deref(), message, "{reason}");
        }
        assert!(!is_refusal(&Error::NoCa));
    }
}
