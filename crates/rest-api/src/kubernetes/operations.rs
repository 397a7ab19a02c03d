//! The operations of a cluster (AIP-151): each is a ConfigMap in the namespace of the operator.

mod old;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams, ObjectMeta};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::failure::from_kube;
use super::write::post_params;
use super::{ATTEMPTS, Access, Authorizer, Kubernetes, Result, access_to_read, object, progress};
use crate::error::{Code, Error};
use crate::operation::{OPERATION_LIFETIME, OperationResult, StoredOperation};
use crate::store::Caller;

pub use old::delete_old;

/// Label of the ConfigMap of an operation: `true`.
pub const OPERATION: &str = "proviso.dev/operation";
/// Label of the ConfigMap of an operation that has ended: `true`.
pub const OPERATION_DONE: &str = "proviso.dev/operation-done";
/// Label of the ConfigMap of an operation: the uid of the object that the operation waits for.
const OBJECT: &str = "proviso.dev/operation-object-uid";
/// The key of the operation in the data of the ConfigMap.
const KEY: &str = "operation.json";
/// The maximum size of an operation, in bytes of JSON. A ConfigMap has at most 1 MiB.
const MAX_SIZE: usize = 900 * 1024;
/// The number of operations after which a store deletes old ones, so that their number stays limited between two deletions by the
/// operator.
const DELETE_EVERY: usize = 50;

fn map_name(id: &str) -> String {
    format!("proviso-operation-{id}")
}

fn not_found(id: &str) -> Error {
    Error::not_found(&format!("operations/{id}"))
}

/// Returns the ConfigMap of an operation.
fn to_map(operation: &StoredOperation) -> ConfigMap {
    let mut labels = BTreeMap::from([
        ("app.kubernetes.io/part-of".to_owned(), "proviso".to_owned()),
        (OPERATION.to_owned(), "true".to_owned()),
        (OBJECT.to_owned(), operation.awaited.uid.clone()),
    ]);
    if operation.result.is_some() {
        labels.insert(OPERATION_DONE.to_owned(), "true".to_owned());
    }
    ConfigMap {
        metadata: ObjectMeta { name: Some(map_name(&operation.id)), labels: Some(labels), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([(KEY.to_owned(), to_text(operation))])),
        ..ConfigMap::default()
    }
}

/// Serializes the operation. If it is too large for a ConfigMap, the resource in it has no spec and no samples: the client can read
/// them from the resource itself.
fn to_text(operation: &StoredOperation) -> String {
    // Serializing does not fail: the keys of every map are strings.
    let text = |operation: &StoredOperation| serde_json::to_string(operation).unwrap_or_default();
    let whole = text(operation);
    if whole.len() <= MAX_SIZE {
        return whole;
    }
    let mut small = operation.clone();
    let response = match &mut small.result {
        Some(OperationResult::Response(response)) => Some(response),
        _ => None,
    };
    for resource in response.into_iter().chain(&mut small.deleted) {
        for (parent, field) in [("", "spec"), ("", "samples"), ("/policy", "spec")] {
            if let Some(parent) = resource.pointer_mut(parent).and_then(Value::as_object_mut) {
                parent.remove(field);
            }
        }
    }
    text(&small)
}

/// Returns the operation in a ConfigMap. `None` means that there is none, or that it has expired.
fn from_map(map: &ConfigMap, now: Timestamp) -> Option<StoredOperation> {
    let text = map.data.as_ref()?.get(KEY)?;
    let operation: StoredOperation = serde_json::from_str(text).ok()?;
    let end = operation.create_time.0.checked_add(OPERATION_LIFETIME).ok()?;
    (end > now && map.labels().contains_key(OPERATION)).then_some(operation)
}

impl<A: Authorizer> Kubernetes<A> {
    fn operation_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.settings.namespace)
    }

    async fn list_operation_maps(&self, selector: &str) -> Result<Vec<StoredOperation>> {
        let list = self.operation_maps().list(&ListParams::default().labels(selector)).await;
        let list = list.map_err(|error| from_kube(&error, "operations"))?;
        let now = Timestamp::now();
        Ok(list.items.iter().filter_map(|map| from_map(map, now)).collect())
    }

    pub(super) async fn store_operation(&self, operation: &StoredOperation) -> Result<()> {
        let created = self.operation_maps().create(&post_params(), &to_map(operation)).await;
        created.map_err(|error| from_kube(&error, &format!("operations/{}", operation.id)))?;
        if (self.created.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(DELETE_EVERY)
            && let Err(error) = delete_old(&self.client, &self.settings.namespace, Timestamp::now()).await
        {
            tracing::warn!(%error, "cannot delete old operations");
        }
        Ok(())
    }

    pub(super) async fn read_operation(&self, caller: Option<&Caller>, id: &str) -> Result<StoredOperation> {
        let (_, operation) = self.get_operation_map(id).await?;
        self.authorizer.authorize(caller, &access_to_read(&operation.awaited)).await?;
        Ok(operation)
    }

    async fn get_operation_map(&self, id: &str) -> Result<(ConfigMap, StoredOperation)> {
        let found = self.operation_maps().get_opt(&map_name(id)).await;
        let found = found.map_err(|error| from_kube(&error, &format!("operations/{id}")))?;
        let map = found.ok_or_else(|| not_found(id))?;
        let operation = from_map(&map, Timestamp::now()).ok_or_else(|| not_found(id))?;
        Ok((map, operation))
    }

    /// Returns the operations that the caller may read. The permission is checked once for each target.
    pub(super) async fn readable_operations(&self, caller: Option<&Caller>) -> Result<Vec<StoredOperation>> {
        let mut permissions: HashMap<Access, bool> = HashMap::new();
        let mut readable = Vec::new();
        for operation in self.list_operation_maps(&format!("{OPERATION}=true")).await? {
            let access = access_to_read(&operation.awaited);
            let is_allowed = match permissions.get(&access) {
                Some(known) => *known,
                None => self.authorizer.is_allowed(caller, &access).await?,
            };
            permissions.insert(access, is_allowed);
            readable.extend(Some(operation).filter(|_| is_allowed));
        }
        Ok(readable)
    }

    pub(super) async fn record_result(&self, id: &str, result: OperationResult) -> Result<StoredOperation> {
        for _ in 0..ATTEMPTS {
            let (map, mut operation) = self.get_operation_map(id).await?;
            if operation.result.is_some() {
                return Ok(operation);
            }
            operation.finish(result.clone());
            let ConfigMap { metadata: ObjectMeta { labels, .. }, data, .. } = to_map(&operation);
            let finished = ConfigMap { metadata: ObjectMeta { labels, ..map.metadata }, data, ..ConfigMap::default() };
            match self.operation_maps().replace(&map_name(id), &post_params(), &finished).await {
                Ok(_) => return Ok(operation),
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(from_kube(&error, &format!("operations/{id}"))),
            }
        }
        Err(Error::concurrent_change(&format!("operations/{id}")))
    }

    /// Records the results of the experiment's pending operations that are decided in this version of the experiment. The next
    /// start, stop or update of the experiment overwrites the fields that decide them.
    pub(super) async fn record_decided(&self, experiment: &DynamicObject) -> Result<()> {
        let uid = experiment.uid().unwrap_or_default();
        let pending = self.list_operation_maps(&format!("{OBJECT}={uid},{OPERATION}=true,!{OPERATION_DONE}")).await?;
        if pending.is_empty() {
            return Ok(());
        }
        let resource = object::experiment(experiment)?.to_json();
        for operation in pending {
            let progress = progress::compute(&operation.awaited, Some(experiment))?;
            if let Some(result) = operation.result_of(&progress, Some(resource.clone())) {
                match self.record_result(&operation.id, result).await {
                    Ok(_) => {}
                    // The operation has expired in the meantime.
                    Err(error) if error.code == Code::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{AwaitedEffect, Effect, Progress};
    use serde_json::json;

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

    #[test]
    fn a_config_map_keeps_an_operation_for_a_day() {
        let mut stored = operation(Effect::StartPreview);
        let map = to_map(&stored);
        assert_eq!(map.name_any(), format!("proviso-operation-{}", stored.id));
        assert_eq!(from_map(&map, at("2026-11-21T09:14:06Z")), Some(stored.clone()));
        assert_eq!(from_map(&map, at("2026-11-21T09:14:07Z")), None);
        let of_somebody_else = ConfigMap { metadata: ObjectMeta::default(), ..map.clone() };
        assert_eq!(from_map(&of_somebody_else, at(CREATED)), None);
        assert!(!map.labels().contains_key(OPERATION_DONE));
        stored.finish(OperationResult::Error(json!({})));
        assert_eq!(to_map(&stored).labels()[OPERATION_DONE], "true");
    }

    #[test]
    fn a_large_response_is_stored_without_its_spec() {
        let mut stored = operation(Effect::Delete);
        let resource = json!({"name": "n", "policy": {"name": "p", "spec": "x".repeat(MAX_SIZE)}, "samples": []});
        stored.deleted = Some(resource);
        let small = from_map(&to_map(&stored), at(CREATED)).unwrap();
        assert_eq!(small.deleted, Some(json!({"name": "n", "policy": {"name": "p"}})));
        stored.finish(stored.result_of(&Progress::Done, None).unwrap());
        let small = from_map(&to_map(&stored), at(CREATED)).unwrap();
        let wanted =
            json!({"@type": "type.googleapis.com/proviso.v1.PolicyExperiment", "name": "n", "policy": {"name": "p"}});
        assert_eq!(small.result, Some(OperationResult::Response(wanted)));
    }

    #[test]
    fn the_permission_to_read_an_operation_is_that_of_the_object_that_it_waits_for() {
        for (effect, resource, name) in [
            (Effect::StartPreview, "policyexperiments", "e"),
            (Effect::Delete, "policyexperiments", "e"),
            (Effect::Commit, "policies", "p"),
        ] {
            let access = access_to_read(&operation(effect).awaited);
            let found = (access.verb, access.resource, access.namespace.as_deref(), access.name.as_deref());
            assert_eq!(found, ("get", resource, Some("team"), Some(name)), "{effect:?}");
        }
    }
}
