//! A store of operations for tests. It stores no policies and no experiments.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_rest_api::{
    AwaitedEffect, Caller, Change, Code, CommitPreconditions, Error, ExperimentName, NamespaceTenants, OperationResult,
    OperationSummary, PolicyStore, Preview, Progress, StoredExperiment, StoredOperation, StoredPolicy,
};

/// A store of operations. Lists fail with [`Code::PermissionDenied`], and say who may not list what. Every other method about
/// policies and experiments panics.
#[derive(Default)]
pub struct TestStore {
    pub operations: Mutex<BTreeMap<String, StoredOperation>>,
    /// The progress of every operation. `None`: it waits for an event.
    pub progress: Mutex<Option<Progress>>,
    /// The number of calls of `progress`.
    pub checks: AtomicUsize,
}

impl TestStore {
    /// Returns a store with one pending operation, and the id of this operation. It has no response, because it is a commit.
    pub fn with_commit() -> (Self, String) {
        let awaited = serde_json::json!({
            "effect": "Commit", "policy": "cluster.p", "experiment": "e", "uid": "u", "version": "1",
        });
        let time = serde_json::from_value(serde_json::json!("2026-11-20T09:14:07Z")).unwrap();
        let operation = StoredOperation::new(serde_json::from_value(awaited).unwrap(), time, None);
        let (store, id) = (Self::default(), operation.id.clone());
        store.operations.lock().unwrap().insert(id.clone(), operation);
        (store, id)
    }

    pub fn set_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap() = Some(progress);
    }

    pub fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }
}

type Result<T> = std::result::Result<T, Error>;
type MaybeCaller<'a> = Option<&'a Caller>;

fn forbidden(message: String) -> Error {
    Error::new(Code::PermissionDenied, "FORBIDDEN", message)
}

impl PolicyStore for TestStore {
    async fn policies(&self, caller: MaybeCaller<'_>, namespace: Option<&str>) -> Result<Vec<StoredPolicy>> {
        let user = caller.map_or("no caller", |caller| &caller.user);
        Err(forbidden(namespace.map_or_else(|| user.to_owned(), |namespace| format!("{user} in {namespace}"))))
    }
    async fn policy_with_uid(&self, _: &str) -> Result<Option<PolicyId>> {
        panic!("on purpose")
    }
    async fn tenants(&self) -> Result<NamespaceTenants> {
        panic!("on purpose")
    }
    fn serving_timeout(&self) -> Duration {
        Duration::ZERO
    }
    async fn policy(&self, _: MaybeCaller<'_>, _: &PolicyId) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn create_policy(&self, _: MaybeCaller<'_>, _: &PolicyId, _: Change) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn update_policy(&self, _: MaybeCaller<'_>, _: &PolicyId, _: &str, _: Change) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn delete_policy(&self, _: MaybeCaller<'_>, _: &PolicyId, _: Option<&str>) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn experiments(&self, _: MaybeCaller<'_>, _: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        Err(forbidden("experiments".to_owned()))
    }
    async fn experiment(&self, _: MaybeCaller<'_>, _: &ExperimentName) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn create_experiment(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: Change) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn update_experiment(
        &self,
        _: MaybeCaller<'_>,
        _: &ExperimentName,
        _: &str,
        _: Change,
    ) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn delete_experiment(
        &self,
        _: MaybeCaller<'_>,
        _: &ExperimentName,
        _: Option<&str>,
    ) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn preview(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: Preview) -> Result<StoredExperiment> {
        panic!("on purpose")
    }
    async fn commit(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: &CommitPreconditions) -> Result<StoredPolicy> {
        panic!("on purpose")
    }
    async fn progress(&self, _: MaybeCaller<'_>, _: &AwaitedEffect) -> Result<Progress> {
        self.checks.fetch_add(1, Ordering::SeqCst);
        let progress = self.progress.lock().unwrap().clone();
        Ok(progress.unwrap_or_else(|| Progress::Running("an event".to_owned())))
    }
    async fn create_operation(&self, operation: StoredOperation) -> Result<()> {
        self.operations.lock().unwrap().insert(operation.id.clone(), operation);
        Ok(())
    }
    async fn operation(&self, _: MaybeCaller<'_>, id: &str) -> Result<StoredOperation> {
        let found = self.operations.lock().unwrap().get(id).cloned();
        found.ok_or_else(|| Error::not_found(&format!("operations/{id}")))
    }
    async fn operations(&self, _: MaybeCaller<'_>) -> Result<Vec<OperationSummary>> {
        Ok(self.operations.lock().unwrap().values().map(StoredOperation::summary).collect())
    }
    async fn finish_operation(&self, id: &str, result: OperationResult) -> Result<StoredOperation> {
        let mut operations = self.operations.lock().unwrap();
        let operation = operations.get_mut(id).ok_or_else(|| Error::not_found(&format!("operations/{id}")))?;
        operation.result.get_or_insert(result);
        Ok(operation.clone())
    }
}
