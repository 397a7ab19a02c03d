//! The ConfigMap of an operation. An annotation has a summary of the operation, so that lists need no bodies.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::{OBJECT, OPERATION, OPERATION_DONE};
use crate::operation::{OperationResult, OperationSummary, StoredOperation, has_expired};

/// Annotation of the ConfigMap of an operation: the summary, as JSON.
pub(super) const SUMMARY: &str = "proviso.dev/operation-summary";
/// Annotation of the ConfigMap of an operation: the uid of the target's namespace. A later namespace of the same name may belong to
/// other users. Absent for a cluster-scoped target.
const NAMESPACE_UID: &str = "proviso.dev/operation-namespace-uid";
/// The key of the operation in the data of the ConfigMap.
const KEY: &str = "operation.json";
/// The maximum size of an operation, in bytes of JSON.
const MAX_SIZE: usize = 32 * 1024;
/// The fields that a resource of a large operation does not have, each below a parent.
const LARGE_FIELDS: [(&str, &str); 6] = [
    ("", "spec"),
    ("", "samples"),
    ("", "canaries"),
    ("", "annotations"),
    ("/policy", "spec"),
    ("/policy", "annotations"),
];
/// The fields that the resource still has if the operation is too large without those.
const SMALL_FIELDS: [&str; 7] = ["@type", "name", "uid", "etag", "state", "createTime", "previewMetadata"];
/// The maximum length of the message in the error of a large operation, in characters.
const MAX_MESSAGE: usize = 2048;

pub(super) fn map_name(id: &str) -> String {
    format!("proviso-operation-{id}")
}

/// Returns the ConfigMap of an operation whose target is in the namespace with this uid.
pub(super) fn to_map(operation: &StoredOperation, namespace_uid: Option<String>) -> ConfigMap {
    let mut labels = BTreeMap::from([
        ("app.kubernetes.io/part-of".to_owned(), "proviso".to_owned()),
        (OPERATION.to_owned(), "true".to_owned()),
        (OBJECT.to_owned(), operation.awaited.uid.clone()),
    ]);
    if operation.result.is_some() {
        labels.insert(OPERATION_DONE.to_owned(), "true".to_owned());
    }
    let mut annotations = BTreeMap::from([(SUMMARY.to_owned(), json!(operation.summary()).to_string())]);
    annotations.extend(namespace_uid.map(|uid| (NAMESPACE_UID.to_owned(), uid)));
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(map_name(&operation.id)),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), to_text(operation))])),
        ..ConfigMap::default()
    }
}

/// Returns the ConfigMap `stored` with the new state of its operation.
pub(super) fn update(stored: ConfigMap, operation: &StoredOperation) -> ConfigMap {
    let namespace_uid = namespace_uid(&stored.metadata).map(ToOwned::to_owned);
    let ConfigMap { metadata: ObjectMeta { labels, annotations, .. }, data, .. } = to_map(operation, namespace_uid);
    ConfigMap { metadata: ObjectMeta { labels, annotations, ..stored.metadata }, data, ..ConfigMap::default() }
}

/// Returns the uid of the target's namespace.
pub(super) fn namespace_uid(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(NAMESPACE_UID).map(String::as_str)
}

/// Returns the summary of the operation in a ConfigMap. `None` means that there is none, or that it has expired.
pub(super) fn summary(metadata: &ObjectMeta, now: Timestamp) -> Option<OperationSummary> {
    let summary: OperationSummary = serde_json::from_str(metadata.annotations.as_ref()?.get(SUMMARY)?).ok()?;
    (!has_expired(summary.create_time.0, now)).then_some(summary)
}

/// Returns the operation in a ConfigMap. `None` means that there is none, or that it has expired.
pub(super) fn from_map(map: &ConfigMap, now: Timestamp) -> Option<StoredOperation> {
    let operation: StoredOperation = serde_json::from_str(map.data.as_ref()?.get(KEY)?).ok()?;
    (!has_expired(operation.create_time.0, now) && map.labels().contains_key(OPERATION)).then_some(operation)
}

/// Serializes the operation. If it is too large, its resource lacks the large fields: the client can read them from the resource
/// itself.
fn to_text(operation: &StoredOperation) -> String {
    // Serializing does not fail: the keys of every map are strings.
    let text = |operation: &StoredOperation| serde_json::to_string(operation).unwrap_or_default();
    let whole = text(operation);
    if whole.len() <= MAX_SIZE {
        return whole;
    }
    let mut small = operation.clone();
    for resource in resources(&mut small) {
        for (parent, field) in LARGE_FIELDS {
            if let Some(parent) = resource.pointer_mut(parent).and_then(Value::as_object_mut) {
                parent.remove(field);
            }
        }
    }
    let without_large_fields = text(&small);
    if without_large_fields.len() <= MAX_SIZE {
        return without_large_fields;
    }
    for resource in resources(&mut small) {
        if let Some(fields) = resource.as_object_mut() {
            fields.retain(|field, _| SMALL_FIELDS.contains(&field.as_str()));
        }
    }
    if let Some(OperationResult::Error(error)) = &mut small.result
        && let Some(Value::String(message)) = error.get_mut("message")
    {
        *message = message.chars().take(MAX_MESSAGE).collect();
    }
    text(&small)
}

/// Returns the resources in an operation.
fn resources(operation: &mut StoredOperation) -> impl Iterator<Item = &mut Value> {
    let response = match &mut operation.result {
        Some(OperationResult::Response(response)) => Some(response),
        _ => None,
    };
    response.into_iter().chain(&mut operation.deleted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};
    use crate::operation::{AwaitedEffect, Effect, Progress};

    const CREATED: &str = "2026-11-20T09:14:07Z";

    fn operation(effect: Effect) -> StoredOperation {
        let awaited = AwaitedEffect {
            effect,
            policy: "ns.team.p".parse().unwrap(),
            experiment: Some("e".to_owned()),
            uid: "u".to_owned(),
            version: "1".to_owned(),
            start: None,
        };
        StoredOperation::new(awaited, serde_json::from_value(json!(CREATED)).unwrap(), None)
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn size(map: &ConfigMap) -> usize {
        map.data.as_ref().unwrap()[KEY].len()
    }

    #[test]
    fn a_config_map_keeps_an_operation_for_a_day() {
        let mut stored = operation(Effect::StartPreview);
        let map = to_map(&stored, Some("n".to_owned()));
        assert_eq!(map.name_any(), format!("proviso-operation-{}", stored.id));
        let (young, old) = (at("2026-11-21T09:14:06Z"), at("2026-11-21T09:14:07Z"));
        assert_eq!((from_map(&map, young), from_map(&map, old)), (Some(stored.clone()), None));
        assert_eq!((summary(&map.metadata, young), summary(&map.metadata, old)), (Some(stored.summary()), None));
        assert_eq!(namespace_uid(&map.metadata), Some("n"));
        let of_somebody_else = ConfigMap { metadata: ObjectMeta::default(), ..map.clone() };
        assert_eq!(from_map(&of_somebody_else, at(CREATED)), None);
        assert_eq!(summary(&of_somebody_else.metadata, at(CREATED)), None);
        assert!(!map.labels().contains_key(OPERATION_DONE));

        stored.finish(OperationResult::Error(json!({})));
        let read = ConfigMap { metadata: ObjectMeta { resource_version: Some("7".to_owned()), ..map.metadata }, ..map };
        let finished = update(read, &stored);
        assert_eq!(finished.labels()[OPERATION_DONE], "true");
        assert!(summary(&finished.metadata, young).unwrap().is_done);
        assert_eq!((namespace_uid(&finished.metadata), finished.resource_version().as_deref()), (Some("n"), Some("7")));
        assert_eq!(from_map(&finished, young), Some(stored));
    }

    #[test]
    fn a_large_response_is_stored_without_its_spec() {
        let mut stored = operation(Effect::Delete);
        let large = "x".repeat(MAX_SIZE);
        stored.deleted = Some(json!({
            "name": "n", "policy": {"name": "p", "spec": large, "annotations": {"a": large}}, "samples": [],
            "annotations": {"a": large},
        }));
        let small = from_map(&to_map(&stored, None), at(CREATED)).unwrap();
        assert_eq!(small.deleted, Some(json!({"name": "n", "policy": {"name": "p"}})));
        stored.finish(stored.result_of(&Progress::Done, None).unwrap());
        let small = from_map(&to_map(&stored, None), at(CREATED)).unwrap();
        let wanted =
            json!({"@type": "type.googleapis.com/proviso.v1.PolicyExperiment", "name": "n", "policy": {"name": "p"}});
        assert_eq!(small.result, Some(OperationResult::Response(wanted)));
    }

    #[test]
    fn the_size_of_every_operation_is_limited() {
        // Each character has 6 bytes in JSON.
        let large = "\u{1}".repeat(MAX_SIZE);
        let mut response = operation(Effect::Update);
        response.finish(OperationResult::Response(json!({"name": "n", "uid": "u", "stateMessage": large})));
        let map = to_map(&response, None);
        assert!(size(&map) <= MAX_SIZE, "{}", size(&map));
        let small = from_map(&map, at(CREATED)).unwrap();
        assert_eq!(small.result, Some(OperationResult::Response(json!({"name": "n", "uid": "u"}))));

        let mut failed = operation(Effect::Update);
        let error = Error::new(Code::FailedPrecondition, "COMPILE_ERROR", large);
        failed.finish(OperationResult::Error(error.to_status()));
        let map = to_map(&failed, None);
        assert!(size(&map) <= MAX_SIZE, "{}", size(&map));
        let Some(OperationResult::Error(small)) = from_map(&map, at(CREATED)).unwrap().result else { panic!() };
        assert_eq!((&small["code"], &small["details"][0]["reason"]), (&json!(9), &json!("COMPILE_ERROR")));
    }
}
