//! The policy store over a folder: each method is a command for the task of the folder source. Every caller may use every method.

use proviso_core::PolicyId;
use proviso_rest_api::{
    AwaitedEffect, Caller, Change, CommitPreconditions, Error, ExperimentName, OperationResult, OperationSummary,
    PolicyStore, Preview, Progress, StoredExperiment, StoredOperation, StoredPolicy,
};

use crate::folder::FolderStoreHandle;

type Result<T> = std::result::Result<T, Error>;

#[derive(Debug)]
pub(super) struct FolderStore(FolderStoreHandle);

impl FolderStore {
    pub(super) fn new(handle: FolderStoreHandle) -> Self {
        Self(handle)
    }
}

impl PolicyStore for FolderStore {
    async fn policies(&self, _: Option<&Caller>, namespace: Option<&str>) -> Result<Vec<StoredPolicy>> {
        let namespace = namespace.map(ToOwned::to_owned);
        self.0.run(move |source, _| Ok(source.stored_policies(namespace.as_deref()))).await
    }

    async fn policy(&self, _: Option<&Caller>, id: &PolicyId) -> Result<StoredPolicy> {
        let id = id.clone();
        self.0.run(move |source, _| source.stored_policy(&id)).await
    }

    async fn create_policy(&self, _: Option<&Caller>, id: &PolicyId, content: Change) -> Result<StoredPolicy> {
        let id = id.clone();
        self.0.run(move |source, folder| source.create_policy(folder, &id, content)).await
    }

    async fn update_policy(
        &self,
        _: Option<&Caller>,
        id: &PolicyId,
        revision: &str,
        content: Change,
    ) -> Result<StoredPolicy> {
        let (id, revision) = (id.clone(), revision.to_owned());
        self.0.run(move |source, folder| source.update_policy(folder, &id, &revision, content)).await
    }

    async fn delete_policy(&self, _: Option<&Caller>, id: &PolicyId, etag: Option<&str>) -> Result<StoredPolicy> {
        let (id, etag) = (id.clone(), etag.map(ToOwned::to_owned));
        self.0.run(move |source, folder| source.delete_policy(folder, &id, etag.as_deref())).await
    }

    async fn experiments(&self, _: Option<&Caller>, policy: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        let policy = policy.cloned();
        self.0.run(move |source, _| Ok(source.stored_experiments(policy.as_ref()))).await
    }

    async fn experiment(&self, _: Option<&Caller>, name: &ExperimentName) -> Result<StoredExperiment> {
        let name = name.clone();
        self.0.run(move |source, _| source.stored_experiment(&name)).await
    }

    async fn create_experiment(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        content: Change,
    ) -> Result<StoredExperiment> {
        let name = name.clone();
        self.0.run(move |source, folder| source.create_experiment(folder, &name, content)).await
    }

    async fn update_experiment(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        revision: &str,
        content: Change,
    ) -> Result<StoredExperiment> {
        let (name, revision) = (name.clone(), revision.to_owned());
        self.0.run(move |source, folder| source.update_experiment(folder, &name, &revision, content)).await
    }

    async fn delete_experiment(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        etag: Option<&str>,
    ) -> Result<StoredExperiment> {
        let (name, etag) = (name.clone(), etag.map(ToOwned::to_owned));
        self.0.run(move |source, folder| source.delete_experiment(folder, &name, etag.as_deref())).await
    }

    async fn preview(&self, _: Option<&Caller>, name: &ExperimentName, change: Preview) -> Result<StoredExperiment> {
        let name = name.clone();
        self.0.run(move |source, _| source.preview(&name, change)).await
    }

    async fn commit(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        committing: &CommitPreconditions,
    ) -> Result<StoredPolicy> {
        let (name, committing) = (name.clone(), committing.clone());
        self.0.run(move |source, folder| source.commit(folder, &name, &committing)).await
    }

    async fn progress(&self, _: Option<&Caller>, awaited: &AwaitedEffect) -> Result<Progress> {
        let awaited = awaited.clone();
        self.0.run(move |source, _| Ok(source.progress(&awaited))).await
    }

    async fn create_operation(&self, operation: StoredOperation) -> Result<()> {
        self.0
            .run(move |source, _| {
                source.create_operation(operation);
                Ok(())
            })
            .await
    }

    async fn operation(&self, _: Option<&Caller>, id: &str) -> Result<StoredOperation> {
        let id = id.to_owned();
        self.0.run(move |source, _| source.operation(&id)).await
    }

    async fn operations(&self, _: Option<&Caller>) -> Result<Vec<OperationSummary>> {
        self.0.run(|source, _| Ok(source.all_operations())).await
    }

    async fn finish_operation(&self, id: &str, result: OperationResult) -> Result<StoredOperation> {
        let id = id.to_owned();
        self.0.run(move |source, _| source.finish_operation(&id, result)).await
    }
}
