//! Makes the cluster what was built.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, DynamicObject, Patch};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Resource as _, ResourceExt as _};
use proviso_crds::PolicyServer;
use proviso_crds::names::SERVER_LABEL;
use serde_json::Value;

use super::observe::Seen;
use super::{Context, Error, build};
use crate::objects::{self, ignore_gone};

/// Applies the objects in their order; the `StatefulSet` as it is then.
pub(super) async fn objects(server: &PolicyServer, objects: &[Value], context: &Context) -> Result<StatefulSet, Error> {
    let mut stateful_set = None;
    for object in objects {
        let applied = one(object, context).await.map_err(|error| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            Error::Apply { object: format!("{} {name}", object["kind"].as_str().unwrap_or_default()), error }
        })?;
        if object["kind"] == "StatefulSet" {
            stateful_set = Some(serde_json::from_value(serde_json::to_value(applied)?)?);
        }
    }
    tracing::debug!(policy_server = server.name_any(), "applied");
    Ok(stateful_set.unwrap_or_default())
}

fn api(api_version: &str, kind: &str, context: &Context) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind == "ClusterRoleBinding" {
        Api::all_with(context.client.clone(), &resource)
    } else {
        Api::namespaced_with(context.client.clone(), &context.place.namespace, &resource)
    }
}

async fn one(object: &Value, context: &Context) -> kube::Result<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    let api = api(&text(&object["apiVersion"]), &kind, context);
    match api.patch(&name, &objects::apply(), &Patch::Apply(object)).await {
        // Whom a binding binds to what cannot be changed: somebody made another under its name.
        Err(kube::Error::Api(status)) if status.is_invalid() && kind.ends_with("RoleBinding") => {
            ignore_gone(api.delete(&name, &DeleteParams::default()).await)?;
            api.patch(&name, &objects::apply(), &Patch::Apply(object)).await
        }
        result => result,
    }
}

/// Deletes everything that was made for the policy server of this name. What somebody else has made under the same name stays.
pub(super) async fn delete(server: &str, context: &Context) -> Result<(), Error> {
    for (api_version, kind, name) in build::parts(server) {
        let api = api(api_version, kind, context);
        let Some(found) = api.get_metadata_opt(&name).await? else { continue };
        if found.labels().get(SERVER_LABEL).is_some_and(|label| label == server) {
            objects::delete(&api, &found).await?;
        }
    }
    tracing::info!(policy_server = server, "deleted, since no policy needs it");
    Ok(())
}

/// Deletes the claim of a cache that is kept elsewhere now. Pods that still use it hold it until they are replaced.
pub(super) async fn leave_out(server: &PolicyServer, seen: &Seen, context: &Context) -> Result<(), Error> {
    let Some(claim) = &seen.claim else { return Ok(()) };
    let is_wanted = server.spec.cache.as_ref().is_some_and(|cache| cache.persistent_volume_claim.is_some());
    if is_wanted || claim.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    Ok(objects::delete(&context.namespaced::<PersistentVolumeClaim>(), claim).await?)
}
