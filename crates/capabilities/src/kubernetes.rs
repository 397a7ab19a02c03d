//! The capabilities `kubernetes/*`: checks the request of a program against its grants, and answers in the format of Kubewarden's
//! SDKs.

pub(crate) mod mask;
pub(crate) mod reader;
pub(crate) mod selector;

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use proviso_core::policy_id::check_name;
use proviso_engines::Deadline;
use serde::Serialize;
use serde_json::Value;

use crate::error::HostCallError;
use crate::host_context::HostContext;
use crate::program_grants::ProgramGrants;
use crate::requests::{self, CanIRequest, GetRequest, ListRequest};
use mask::Mask;
use reader::KindReader;
use selector::ObjectSelector;

/// The maximum number of objects in a list that is serialized on an async worker. Longer lists use a blocking thread.
const MAX_INLINE_OBJECTS: usize = 500;
/// The maximum length of an object name, in bytes.
const MAX_NAME: usize = 253;

/// Answers an operation of a program. `readers` has a reader for each kind of `grants.resources`, in the same order.
pub(crate) async fn answer(
    host_context: &HostContext,
    grants: &ProgramGrants,
    readers: &[KindReader],
    operation: &str,
    payload: &[u8],
    deadline: Deadline,
) -> Result<Vec<u8>, HostCallError> {
    let call = format!("kubernetes/{operation}");
    match operation {
        "list_resources_by_namespace" => {
            let request: ListRequest = requests::read(&call, payload)?;
            let namespace = request.namespace.clone().ok_or_else(|| malformed(&call, "`namespace` is missing"))?;
            check_namespace(&call, &namespace)?;
            list(grants, readers, &call, request, Some(namespace), deadline).await
        }
        "list_resources_all" => {
            let request: ListRequest = requests::read(&call, payload)?;
            list(grants, readers, &call, request, None, deadline).await
        }
        "get_resource" => get(grants, readers, &call, requests::read(&call, payload)?, deadline).await,
        "can_i" => can_i(host_context, grants, &call, requests::read(&call, payload)?).await,
        _ => Err(HostCallError::Unknown(call)),
    }
}

async fn list(
    grants: &ProgramGrants,
    readers: &[KindReader],
    call: &str,
    request: ListRequest,
    namespace: Option<String>,
    deadline: Deadline,
) -> Result<Vec<u8>, HostCallError> {
    let reader = &readers[grants.check_kind(&request.kind())?];
    match (&namespace, &grants.namespace) {
        (Some(namespace), _) => grants.check_namespace(namespace)?,
        (None, Some(own)) => {
            return Err(HostCallError::ClusterWide {
                call: call.to_owned(),
                own: own.clone(),
                remedy: "list_resources_by_namespace lists its own namespace; a ClusterPolicy can list all namespaces",
            });
        }
        (None, None) => {}
    }
    let mask = Mask::read(call, request.field_masks.as_ref())?;
    let selector = ObjectSelector::parse(request.label_selector.as_deref(), request.field_selector.as_deref())?;
    if namespace.is_some() && !reader.is_namespaced(deadline).await? {
        let why = "is cluster-scoped: use list_resources_all";
        return Err(HostCallError::Scope { kind: request.kind(), why });
    }
    let found = reader.list(namespace.as_deref(), &selector, deadline).await?;
    let is_inline = found.objects.len() <= MAX_INLINE_OBJECTS;
    let write = move || to_list(&request.api_version, &request.kind, &found.objects, mask.as_ref());
    if is_inline {
        return Ok(write());
    }
    let task = tokio::task::spawn_blocking(write);
    task.await.map_err(|error| HostCallError::Stopped(format!("serializing the list: {error}")))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListOut<'a, T> {
    api_version: &'a str,
    /// The kind of the list, such as `PodList`. Typed clients check it.
    kind: String,
    metadata: Value,
    items: Vec<T>,
}

fn to_list(api_version: &str, kind: &str, objects: &[Arc<Value>], mask: Option<&Mask>) -> Vec<u8> {
    let (kind, metadata) = (format!("{kind}List"), Value::Object(serde_json::Map::new()));
    let written = if let Some(mask) = mask {
        let items = objects.iter().map(|object| mask.apply(object)).collect();
        serde_json::to_vec(&ListOut::<Value> { api_version, kind, metadata, items })
    } else {
        let items = objects.iter().map(|object| &**object).collect();
        serde_json::to_vec(&ListOut::<&Value> { api_version, kind, metadata, items })
    };
    // A value that was parsed from JSON always serializes.
    written.unwrap_or_default()
}

async fn get(
    grants: &ProgramGrants,
    readers: &[KindReader],
    call: &str,
    request: GetRequest,
    deadline: Deadline,
) -> Result<Vec<u8>, HostCallError> {
    let kind = request.kind();
    let reader = &readers[grants.check_kind(&kind)?];
    // Some SDKs send an empty string if there is no namespace.
    let namespace = request.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    check_object_name(call, &request.name)?;
    match namespace {
        Some(namespace) => {
            check_namespace(call, namespace)?;
            grants.check_namespace(namespace)?;
        }
        None => {
            if let Some(own) = &grants.namespace {
                return Err(HostCallError::OtherNamespace {
                    own: own.clone(),
                    wanted: format!("{kind} outside of it"),
                });
            }
        }
    }
    match (reader.is_namespaced(deadline).await?, namespace) {
        (true, None) => return Err(HostCallError::Scope { kind, why: "is namespaced: set `namespace`" }),
        (false, Some(_)) => {
            return Err(HostCallError::Scope { kind, why: "is cluster-scoped: `namespace` must not be set" });
        }
        _ => {}
    }
    let mask = Mask::read(call, request.field_masks.as_ref())?;
    let object = reader.get(namespace, &request.name, request.disable_cache, deadline).await?;
    let object = object.ok_or_else(|| {
        let name = namespace.map_or_else(|| request.name.clone(), |namespace| format!("{namespace}/{}", request.name));
        HostCallError::NotFound { kind, name }
    })?;
    let masked = mask.map(|mask| mask.apply(&object));
    Ok(serde_json::to_vec(masked.as_ref().unwrap_or(&object)).unwrap_or_default())
}

async fn can_i(
    host_context: &HostContext,
    grants: &ProgramGrants,
    call: &str,
    request: CanIRequest,
) -> Result<Vec<u8>, HostCallError> {
    let review = request.subject_access_review;
    if review.resource_attributes.is_some() == review.non_resource_attributes.is_some() {
        return Err(malformed(call, "needs exactly one of `resource_attributes` and `non_resource_attributes`"));
    }
    if let Some(own) = &grants.namespace {
        // The same restriction as for a LocalSubjectAccessReview, which the owners of a namespace may create themselves.
        let namespace = review.resource_attributes.as_ref().and_then(|it| it.namespace.as_deref()).unwrap_or_default();
        if namespace.is_empty() {
            let remedy = "set `resource_attributes.namespace`; a ClusterPolicy can check all namespaces";
            return Err(HostCallError::ClusterWide { call: call.to_owned(), own: own.clone(), remedy });
        }
        grants.check_namespace(namespace)?;
    }
    let answer = host_context.can_i(SubjectAccessReviewSpec::from(review), request.disable_cache).await?;
    Ok(serde_json::to_vec(&answer).unwrap_or_default())
}

fn malformed(call: &str, error: &str) -> HostCallError {
    HostCallError::Request { call: call.to_owned(), error: error.to_owned() }
}

fn check_namespace(call: &str, namespace: &str) -> Result<(), HostCallError> {
    check_name(namespace).map_err(|_| malformed(call, &format!("{namespace:?} is not a namespace name")))
}

/// Checks the name of an object. The name becomes one segment of a URL path, so it must not contain separators.
fn check_object_name(call: &str, name: &str) -> Result<(), HostCallError> {
    let is_forbidden = |c: char| !c.is_ascii_graphic() || "/%?#\\".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || name == "." || name == ".." || name.contains(is_forbidden) {
        let name: String = name.chars().take(80).collect();
        return Err(malformed(call, &format!("{name:?} is not an object name")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_has_the_list_kind_and_the_masked_items() {
        let objects = [Arc::new(json!({"kind": "Pod", "a": 1, "b": 2})), Arc::new(json!({"kind": "Pod"}))];
        let list =
            |mask: Option<&Mask>| -> Value { serde_json::from_slice(&to_list("v1", "Pod", &objects, mask)).unwrap() };
        let head = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []});
        let with = |items: Value| {
            let mut list = head.clone();
            list["items"] = items;
            list
        };
        assert_eq!(list(None), with(json!([{"kind": "Pod", "a": 1, "b": 2}, {"kind": "Pod"}])));
        let mask = Mask::read("c", Some(&["a".to_owned()].into())).unwrap();
        assert_eq!(list(mask.as_ref()), with(json!([{"kind": "Pod", "a": 1}, {"kind": "Pod"}])));
    }

    #[test]
    fn an_object_name_is_one_segment_of_a_path() {
        for name in ["a", "a-b.c", "system:node", "A_b"] {
            check_object_name("c", name).unwrap();
        }
        for name in ["", ".", "..", "../b", "a/b", "a%2fb", "a?b", "a#b", "a b", "a\\b", "ä", "a\0", &"x".repeat(254)]
        {
            assert!(check_object_name("c", name).is_err(), "{name:?}");
        }
        assert!(check_namespace("c", "a").is_ok() && check_namespace("c", "a/b").is_err());
    }
}
