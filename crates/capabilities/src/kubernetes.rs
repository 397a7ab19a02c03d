//! The capabilities `kubernetes/*`: what a program asks, checked against what it may see, and the answers as Kubewarden's SDKs
//! read them.

pub(crate) mod mask;
pub(crate) mod reading;
pub(crate) mod selector;

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use proviso_core::policy_id::check_name;
use proviso_engines::Deadline;
use serde::Serialize;
use serde_json::Value;

use crate::error::AskError;
use crate::requests::{self, CanI, Get, List};
use crate::rights::Rights;
use crate::world::World;
use mask::Mask;
use reading::Reading;
use selector::Wanted;

/// A list of more objects than this is put together off the async workers.
const SMALL: usize = 500;
/// The longest name of an object.
const MAX_NAME: usize = 253;

/// Answers an operation of a program with these rights. `readings` has an item for each of `rights.resources`, in the same
/// order.
pub(crate) async fn answer(
    world: &World,
    rights: &Rights,
    readings: &[Reading],
    operation: &str,
    payload: &[u8],
    deadline: Deadline,
) -> Result<Vec<u8>, AskError> {
    let call = format!("kubernetes/{operation}");
    match operation {
        "list_resources_by_namespace" => {
            let request: List = requests::read(&call, payload)?;
            let namespace = request.namespace.clone().ok_or_else(|| malformed(&call, "`namespace` is missing"))?;
            check_namespace(&call, &namespace)?;
            list(rights, readings, &call, request, Some(namespace), deadline).await
        }
        "list_resources_all" => {
            let request: List = requests::read(&call, payload)?;
            list(rights, readings, &call, request, None, deadline).await
        }
        "get_resource" => get(rights, readings, &call, requests::read(&call, payload)?, deadline).await,
        "can_i" => can_i(world, rights, &call, requests::read(&call, payload)?).await,
        _ => Err(AskError::Unknown(call)),
    }
}

async fn list(
    rights: &Rights,
    readings: &[Reading],
    call: &str,
    request: List,
    namespace: Option<String>,
    deadline: Deadline,
) -> Result<Vec<u8>, AskError> {
    let reading = &readings[rights.check_kind(&request.kind())?];
    match (&namespace, &rights.namespace) {
        (Some(namespace), _) => rights.check_namespace(namespace)?,
        (None, Some(own)) => {
            return Err(AskError::ClusterWide {
                call: call.to_owned(),
                own: own.clone(),
                remedy: "list_resources_by_namespace is for its own namespace; a ClusterPolicy sees all",
            });
        }
        (None, None) => {}
    }
    let mask = Mask::read(call, request.field_masks.as_ref())?;
    let wanted = Wanted::read(request.label_selector.as_deref(), request.field_selector.as_deref())?;
    if namespace.is_some() && !reading.is_namespaced(deadline).await? {
        let why = "belongs to no namespace: use list_resources_all";
        return Err(AskError::Scope { kind: request.kind(), why });
    }
    let found = reading.list(namespace.as_deref(), &wanted, deadline).await?;
    let is_small = found.objects.len() <= SMALL;
    let write = move || to_list(&request.api_version, &request.kind, &found.objects, mask.as_ref());
    if is_small {
        return Ok(write());
    }
    let writing = tokio::task::spawn_blocking(write);
    writing.await.map_err(|stopped| AskError::ApiServer(format!("writing the list stopped: {stopped}")))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListOut<'a, T> {
    api_version: &'a str,
    /// Typed clients look at it.
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
    // What was JSON can be JSON again.
    written.unwrap_or_default()
}

async fn get(
    rights: &Rights,
    readings: &[Reading],
    call: &str,
    request: Get,
    deadline: Deadline,
) -> Result<Vec<u8>, AskError> {
    let kind = request.kind();
    let reading = &readings[rights.check_kind(&kind)?];
    // Some SDKs send none as an empty text.
    let namespace = request.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    check_object_name(call, &request.name)?;
    match namespace {
        Some(namespace) => {
            check_namespace(call, namespace)?;
            rights.check_namespace(namespace)?;
        }
        None => {
            if let Some(own) = &rights.namespace {
                return Err(AskError::OtherNamespace { own: own.clone(), wanted: format!("{kind} outside of it") });
            }
        }
    }
    match (reading.is_namespaced(deadline).await?, namespace) {
        (true, None) => return Err(AskError::Scope { kind, why: "belongs to a namespace: give `namespace`" }),
        (false, Some(_)) => {
            return Err(AskError::Scope { kind, why: "belongs to no namespace: `namespace` must be none" });
        }
        _ => {}
    }
    let mask = Mask::read(call, request.field_masks.as_ref())?;
    let object = reading.get(namespace, &request.name, request.disable_cache, deadline).await?;
    let object = object.ok_or_else(|| {
        let name = namespace.map_or_else(|| request.name.clone(), |namespace| format!("{namespace}/{}", request.name));
        AskError::NotFound { kind, name }
    })?;
    let masked = mask.map(|mask| mask.apply(&object));
    Ok(serde_json::to_vec(masked.as_ref().unwrap_or(&object)).unwrap_or_default())
}

async fn can_i(world: &World, rights: &Rights, call: &str, request: CanI) -> Result<Vec<u8>, AskError> {
    let review = request.subject_access_review;
    if review.resource_attributes.is_some() == review.non_resource_attributes.is_some() {
        return Err(malformed(call, "needs exactly one of `resource_attributes` and `non_resource_attributes`"));
    }
    if let Some(own) = &rights.namespace {
        // As a LocalSubjectAccessReview, which is what the owners of a namespace may ask themselves.
        let namespace = review.resource_attributes.as_ref().and_then(|it| it.namespace.as_deref()).unwrap_or_default();
        if namespace.is_empty() {
            let remedy = "give the `namespace` of `resource_attributes`; a ClusterPolicy may ask about all";
            return Err(AskError::ClusterWide { call: call.to_owned(), own: own.clone(), remedy });
        }
        rights.check_namespace(namespace)?;
    }
    let answer = world.can_i(SubjectAccessReviewSpec::from(review), request.disable_cache).await?;
    Ok(serde_json::to_vec(&answer).unwrap_or_default())
}

fn malformed(call: &str, error: &str) -> AskError {
    AskError::Request { call: call.to_owned(), error: error.to_owned() }
}

fn check_namespace(call: &str, namespace: &str) -> Result<(), AskError> {
    check_name(namespace).map_err(|_| malformed(call, &format!("{namespace:?} is no namespace")))
}

/// A name becomes a part of a path: what would make it more than one part is no name.
fn check_object_name(call: &str, name: &str) -> Result<(), AskError> {
    let is_odd = |c: char| !c.is_ascii_graphic() || "/%?#\\".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || name == "." || name == ".." || name.contains(is_odd) {
        let name: String = name.chars().take(80).collect();
        return Err(malformed(call, &format!("{name:?} is no name of an object")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_says_what_it_is_a_list_of() {
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
    fn a_name_is_one_part_of_a_path() {
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
