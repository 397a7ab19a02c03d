//! The operations of the REST API (AIP-151), with their results. They are kept in the state file.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use proviso_rest_api::{
    Error, OperationRecord, OperationResult, OperationSummary, StoredOperation, has_expired, removable,
};

/// The maximum size of all operations together, in bytes of JSON. A result contains a whole resource.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The operations, in the order of their creation.
#[derive(Debug, Default)]
pub(super) struct Operations(Vec<Operation>);

#[derive(Debug)]
struct Operation {
    stored: Arc<StoredOperation>,
    /// The size in bytes of JSON.
    size: usize,
}

impl Operation {
    fn new(stored: Arc<StoredOperation>) -> Self {
        let size = serde_json::to_vec(&stored).map_or(0, |json| json.len());
        Self { stored, size }
    }

    fn has_ended(&self) -> bool {
        self.stored.result.is_some()
    }

    fn is_expired(&self, now: Timestamp) -> bool {
        has_expired(self.stored.create_time.0, now)
    }
}

impl Operations {
    /// Takes the operations of an earlier process.
    pub(super) fn restore(stored: Vec<Arc<StoredOperation>>) -> Self {
        Self(stored.into_iter().map(Operation::new).collect())
    }

    /// Returns all operations, for the state file.
    pub(super) fn to_state(&self) -> Vec<Arc<StoredOperation>> {
        self.0.iter().map(|operation| Arc::clone(&operation.stored)).collect()
    }

    /// Adds a new operation. Expired operations, and the oldest ones beyond the limits, are removed.
    pub(super) fn add(&mut self, operation: StoredOperation, now: Timestamp) {
        let id = operation.id.clone();
        self.0.push(Operation::new(Arc::new(operation)));
        self.prune(&id, now);
    }

    /// Returns the operation.
    ///
    /// # Errors
    /// Returns an error if the id was never issued, or if the operation is not kept any more.
    pub(super) fn get(&self, id: &str, now: Timestamp) -> Result<StoredOperation, Error> {
        let found = self.0.iter().find(|operation| operation.stored.id == id && !operation.is_expired(now));
        found.map(|operation| operation.stored.as_ref().clone()).ok_or_else(|| not_found(id))
    }

    /// Returns the operations that are not expired.
    pub(super) fn all(&self, now: Timestamp) -> Vec<OperationSummary> {
        let kept = self.0.iter().filter(|operation| !operation.is_expired(now));
        kept.map(|operation| operation.stored.summary()).collect()
    }

    /// Returns the operations without a result.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Arc<StoredOperation>> {
        self.0.iter().filter(|operation| !operation.has_ended()).map(|operation| &operation.stored)
    }

    /// Records the result of the operation, and returns the operation. An earlier result stays.
    ///
    /// # Errors
    /// Returns an error if the id was never issued, or if the operation is not kept any more.
    pub(super) fn finish(
        &mut self,
        id: &str,
        result: OperationResult,
        now: Timestamp,
    ) -> Result<StoredOperation, Error> {
        let found = self.0.iter_mut().find(|operation| operation.stored.id == id && !operation.is_expired(now));
        let operation = found.ok_or_else(|| not_found(id))?;
        if !operation.has_ended() {
            let mut stored = operation.stored.as_ref().clone();
            stored.finish(result);
            *operation = Operation::new(Arc::new(stored));
        }
        let stored = Arc::clone(&operation.stored);
        self.prune(id, now);
        Ok(stored.as_ref().clone())
    }

    /// Removes expired operations, and as many others as the limits require ([`removable`]). The operation `kept` stays.
    fn prune(&mut self, kept: &str, now: Timestamp) {
        let record = |operation: &Operation| OperationRecord {
            create_time: operation.stored.create_time.0,
            is_done: operation.has_ended(),
            is_protected: operation.stored.id == kept,
            size: operation.size,
        };
        let records: Vec<_> = self.0.iter().map(record).collect();
        let removed = removable(&records, now, MAX_BYTES);
        let mut indices = 0..;
        self.0.retain(|_| indices.next().is_some_and(|index| !removed.contains(&index)));
    }
}

fn not_found(id: &str) -> Error {
    Error::not_found(&format!("operations/{}", id.chars().take(100).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proviso_rest_api::{AwaitedEffect, Code, Effect, MAX_OPERATIONS};
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn operation(id: &str, seconds: i64) -> StoredOperation {
        let awaited = AwaitedEffect {
            effect: Effect::Update,
            policy: "cluster.p".parse().unwrap(),
            experiment: None,
            uid: "u".to_owned(),
            version: "1-x".to_owned(),
            start: None,
        };
        StoredOperation { id: id.to_owned(), ..StoredOperation::new(awaited, Time(at(seconds)), None) }
    }

    fn response(text: &str) -> OperationResult {
        OperationResult::Response(json!(text))
    }

    fn ids(operations: &Operations, now: i64) -> Vec<String> {
        operations.all(at(now)).into_iter().map(|operation| operation.id).collect()
    }

    #[test]
    fn the_first_result_stays_and_unknown_ids_are_not_found() {
        let mut operations = Operations::default();
        operations.add(operation("a", 0), at(0));
        assert_eq!(operations.get("a", at(1)).unwrap().result, None);
        assert_eq!(operations.pending().count(), 1);
        for result in ["first", "second"] {
            let finished = operations.finish("a", response(result), at(1)).unwrap();
            assert_eq!(finished.result, Some(response("first")));
        }
        assert_eq!(operations.pending().count(), 0);
        assert_eq!(operations.get("b", at(1)).unwrap_err().code, Code::NotFound);
        assert_eq!(operations.finish("b", response(""), at(1)).unwrap_err().code, Code::NotFound);
        let restored = Operations::restore(operations.to_state());
        assert_eq!(restored.get("a", at(1)).unwrap().result, Some(response("first")));
    }

    #[test]
    fn an_operation_is_kept_for_a_day() {
        let mut operations = Operations::default();
        operations.add(operation("a", 0), at(0));
        operations.add(operation("b", 60), at(60));
        let day = 24 * 60 * 60;
        assert_eq!(ids(&operations, day - 1), ["a", "b"]);
        assert_eq!(ids(&operations, day), ["b"]);
        assert_eq!(operations.get("a", at(day)).unwrap_err().code, Code::NotFound);
        assert_eq!(operations.finish("a", response(""), at(day)).unwrap_err().code, Code::NotFound);
        operations.add(operation("c", day), at(day));
        assert_eq!(operations.to_state().len(), 2);
    }

    #[test]
    fn the_oldest_finished_operations_give_way_first() {
        let mut operations = Operations::default();
        for id in 0..MAX_OPERATIONS {
            operations.add(operation(&id.to_string(), 0), at(0));
        }
        operations.finish("7", response(""), at(0)).unwrap();
        operations.finish("3", response(""), at(0)).unwrap();
        for id in 0..3 {
            operations.add(operation(&format!("new-{id}"), 0), at(0));
        }
        let kept = ids(&operations, 0);
        assert_eq!(kept.len(), MAX_OPERATIONS);
        for gone in ["3", "7", "0"] {
            assert!(!kept.contains(&gone.to_owned()), "{gone}");
        }
        assert!(kept.contains(&"1".to_owned()) && kept.ends_with(&["new-2".to_owned()]));
    }

    #[test]
    fn large_results_give_way_to_new_operations() {
        let mut operations = Operations::default();
        let large = "x".repeat(MAX_BYTES / 3);
        for id in 0..5 {
            operations.add(operation(&id.to_string(), 0), at(0));
            operations.finish(&id.to_string(), response(&large), at(0)).unwrap();
        }
        operations.add(operation("last", 0), at(0));
        assert_eq!(ids(&operations, 0), ["3", "4", "last"]);
        // One operation is kept, whatever its size.
        operations.finish("last", response(&"x".repeat(2 * MAX_BYTES)), at(0)).unwrap();
        assert_eq!(ids(&operations, 0), ["last"]);
    }
}
