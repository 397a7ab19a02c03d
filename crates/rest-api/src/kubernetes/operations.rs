//! The operations of a cluster (AIP-151): each is a ConfigMap in the namespace of the operator.

mod map;
mod old;

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};

use super::failure::from_kube;
use super::write::post_params;
use super::{ATTEMPTS, Access, Authorizer, Kubernetes, Result, access_to_read, object, progress};
use crate::error::{Code, Error};
use crate::operation::{OperationResult, OperationSummary, StoredOperation};
use crate::store::Caller;
use map::{from_map, map_name, to_map};

pub use old::delete_old;

/// Label of the ConfigMap of an operation: `true`.
pub const OPERATION: &str = "proviso.dev/operation";
/// Label of the ConfigMap of an operation that has ended: `true`.
pub const OPERATION_DONE: &str = "proviso.dev/operation-done";
/// Label of the ConfigMap of an operation: the uid of the object that the operation waits for.
const OBJECT: &str = "proviso.dev/operation-object-uid";
/// The number of operations after which a store deletes old ones, so that their number stays limited between two deletions by the
/// operator.
const DELETE_EVERY: usize = 50;

fn not_found(id: &str) -> Error {
    Error::not_found(&format!("operations/{id}"))
}

/// Returns true if the namespace of an operation, with the uid `stored`, is the namespace that has its name now.
fn is_same(stored: Option<&str>, current: Option<&str>) -> bool {
    stored.is_some() && stored == current
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
        let namespace_uid = match operation.awaited.policy.namespace() {
            Some(namespace) => self.namespace_uid(namespace).await?,
            None => None,
        };
        let created = self.operation_maps().create(&post_params(), &to_map(operation, namespace_uid)).await;
        created.map_err(|error| from_kube(&error, &format!("operations/{}", operation.id)))?;
        if (self.created.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(DELETE_EVERY)
            && let Err(error) = delete_old(&self.client, &self.settings.namespace, Timestamp::now()).await
        {
            tracing::warn!(%error, "cannot delete old operations");
        }
        Ok(())
    }

    pub(super) async fn read_operation(&self, caller: Option<&Caller>, id: &str) -> Result<StoredOperation> {
        let (map, operation) = self.get_operation_map(id).await?;
        self.authorizer.authorize(caller, &access_to_read(&operation.awaited)).await?;
        let is_current = match operation.awaited.policy.namespace() {
            Some(namespace) => {
                is_same(map::namespace_uid(&map.metadata), self.namespace_uid(namespace).await?.as_deref())
            }
            None => true,
        };
        if is_current { Ok(operation) } else { Err(not_found(id)) }
    }

    async fn get_operation_map(&self, id: &str) -> Result<(ConfigMap, StoredOperation)> {
        let found = self.operation_maps().get_opt(&map_name(id)).await;
        let found = found.map_err(|error| from_kube(&error, &format!("operations/{id}")))?;
        let map = found.ok_or_else(|| not_found(id))?;
        let operation = from_map(&map, Timestamp::now()).ok_or_else(|| not_found(id))?;
        Ok((map, operation))
    }

    /// Returns the uid of the namespace; `None` if there is no such namespace.
    async fn namespace_uid(&self, namespace: &str) -> Result<Option<String>> {
        let found = Api::<Namespace>::all(self.client.clone()).get_metadata_opt(namespace).await;
        let found = found.map_err(|error| from_kube(&error, &format!("namespaces/{namespace}")))?;
        Ok(found.and_then(|namespace| namespace.uid()))
    }

    /// Returns summaries of the operations on the kinds and namespaces in which the caller may read every object. A permission to read
    /// single objects does not count, as in lists of Kubernetes: it would need a review for each operation.
    pub(super) async fn readable_operations(&self, caller: Option<&Caller>) -> Result<Vec<OperationSummary>> {
        let list =
            self.operation_maps().list_metadata(&ListParams::default().labels(&format!("{OPERATION}=true"))).await;
        let list = list.map_err(|error| from_kube(&error, "operations"))?;
        let now = Timestamp::now();
        let mut permissions: HashMap<Access, bool> = HashMap::new();
        let mut namespaces: HashMap<String, Option<String>> = HashMap::new();
        let mut readable = Vec::new();
        for map in list.items {
            let Some(summary) = map::summary(&map.metadata, now) else { continue };
            let access = Access { name: None, ..access_to_read(&summary.awaited) };
            if !self.is_allowed(caller, &access, &mut permissions).await? {
                continue;
            }
            if let Some(namespace) = summary.awaited.policy.namespace() {
                let current = match namespaces.get(namespace) {
                    Some(known) => known.clone(),
                    None => self.namespace_uid(namespace).await?,
                };
                let is_current = is_same(map::namespace_uid(&map.metadata), current.as_deref());
                namespaces.insert(namespace.to_owned(), current);
                if !is_current {
                    continue;
                }
            }
            readable.push(summary);
        }
        Ok(readable)
    }

    /// Returns true if the caller is allowed the access. A permission in all namespaces saves the reviews for single namespaces.
    async fn is_allowed(
        &self,
        caller: Option<&Caller>,
        access: &Access,
        permissions: &mut HashMap<Access, bool>,
    ) -> Result<bool> {
        let everywhere = Access { namespace: None, ..access.clone() };
        for access in [&everywhere, access] {
            let is_allowed = match permissions.get(access) {
                Some(known) => *known,
                None => self.authorizer.is_allowed(caller, access).await?,
            };
            permissions.insert(access.clone(), is_allowed);
            if is_allowed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) async fn record_result(&self, id: &str, result: OperationResult) -> Result<StoredOperation> {
        for _ in 0..ATTEMPTS {
            let (map, mut operation) = self.get_operation_map(id).await?;
            if operation.result.is_some() {
                return Ok(operation);
            }
            operation.finish(result.clone());
            let finished = map::update(map, &operation);
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
mod tests;
