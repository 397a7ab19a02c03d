//! The deletion of old operations. The operator deletes them at an interval, and a store that creates many operations deletes them in
//! between.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Preconditions};
use kube::{Api, Client, ResourceExt as _};

use super::{OPERATION, OPERATION_DONE};
use crate::operation::{OperationRecord, removable};

/// Deletes the operations in `namespace` that have expired at the time `now`, and as many others as exceed the maximum. Returns the
/// number of deleted operations.
///
/// # Errors
/// Returns the error of the first request that fails.
pub async fn delete_old(client: &Client, namespace: &str, now: Timestamp) -> kube::Result<usize> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    // The metadata is enough: the body of an operation can contain a whole policy.
    let found = api.list_metadata(&ListParams::default().labels(&format!("{OPERATION}=true"))).await?;
    let old = select(&found.items, now);
    for operation in &old {
        let preconditions = Some(Preconditions { uid: operation.uid(), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        match api.delete(&operation.name_any(), &parameters).await {
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            result => drop(result?),
        }
    }
    Ok(old.len())
}

/// Returns the operations to delete ([`removable`]). The size of each is limited.
fn select(operations: &[PartialObjectMeta<ConfigMap>], now: Timestamp) -> Vec<&PartialObjectMeta<ConfigMap>> {
    let record = |operation: &PartialObjectMeta<ConfigMap>| OperationRecord {
        create_time: operation.creation_timestamp().map_or(now, |time| time.0),
        is_done: operation.labels().contains_key(OPERATION_DONE),
        is_protected: false,
        size: 0,
    };
    let records: Vec<_> = operations.iter().map(record).collect();
    removable(&records, now, usize::MAX).into_iter().map(|index| &operations[index]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::operation::MAX_OPERATIONS;

    fn operation(name: &str, created: &str, is_done: bool) -> Value {
        let mut labels = json!({OPERATION: "true"});
        if is_done {
            labels[OPERATION_DONE] = json!("true");
        }
        json!({"metadata": {"name": name, "uid": name, "labels": labels, "creationTimestamp": created}})
    }

    fn selected(operations: &[Value]) -> Vec<String> {
        let operations: Vec<PartialObjectMeta<ConfigMap>> =
            operations.iter().map(|it| serde_json::from_value(it.clone()).unwrap()).collect();
        let old = select(&operations, "2026-11-21T09:00:00Z".parse().unwrap());
        old.into_iter().map(PartialObjectMeta::name_any).collect()
    }

    #[test]
    fn operations_are_deleted_after_a_day() {
        let operations = [
            operation("yesterday", "2026-11-20T08:59:59Z", false),
            operation("at-the-limit", "2026-11-20T09:00:00Z", true),
            operation("younger", "2026-11-20T09:00:01Z", true),
        ];
        assert_eq!(selected(&operations), ["yesterday", "at-the-limit"]);
    }

    #[test]
    fn the_oldest_finished_operations_above_the_maximum_are_deleted_first() {
        let mut operations: Vec<_> =
            (0..MAX_OPERATIONS).map(|index| operation(&index.to_string(), "2026-11-21T08:00:00Z", false)).collect();
        assert!(selected(&operations).is_empty());
        operations.push(operation("old-pending", "2026-11-21T01:00:00Z", false));
        operations.push(operation("new-done", "2026-11-21T08:30:00Z", true));
        operations.push(operation("old-done", "2026-11-21T07:00:00Z", true));
        assert_eq!(selected(&operations), ["old-done", "new-done", "old-pending"]);
    }
}
