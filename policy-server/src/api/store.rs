//! The policy store over a folder: each method is a command for the task of the folder source. Every caller may use every method.

use std::sync::Arc;
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_crds::{PolicySpec, PreviewMetadata, PreviewState};
use proviso_rest_api::{
    AwaitedEffect, Caller, Change, Code, CommitPreconditions, Error, ExperimentName, FieldViolation, NamespaceTenants,
    OperationResult, OperationSummary, PolicyStore, Preview, Progress, StoredExperiment, StoredOperation, StoredPolicy,
};
use tokio::sync::Semaphore;

use crate::configuration::{Content, FolderConfiguration};
use crate::folder::FolderStoreHandle;

/// The number of programs that are compiled at the same time before they are stored.
const MAX_COMPILATIONS: usize = 2;
/// The time for which a change waits until its program is compiled.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Error>;

#[derive(Debug)]
pub(super) struct FolderStore {
    folder: FolderStoreHandle,
    configuration: Arc<FolderConfiguration>,
    compilations: Arc<Semaphore>,
}

impl FolderStore {
    pub(super) fn new(folder: FolderStoreHandle, configuration: Arc<FolderConfiguration>) -> Self {
        Self { folder, configuration, compilations: Arc::new(Semaphore::new(MAX_COMPILATIONS)) }
    }

    /// Adds the canaries to an experiment on a configuration policy that is previewed.
    fn with_canaries(&self, mut experiment: StoredExperiment) -> StoredExperiment {
        let is_active = |preview: &&PreviewMetadata| preview.state == PreviewState::Active;
        let preview = experiment.preview.as_ref().filter(is_active);
        if let (Some(preview), Some(_)) = (preview, &experiment.spec.configuration) {
            experiment.canaries = self.configuration.canaries(&experiment.name, preview.generation);
        }
        experiment
    }

    /// Compiles the program of a request policy, or the content of a configuration policy. A program that does not compile must not be stored. The task of the folder does not
    /// wait for the compiler.
    async fn check_program(&self, policy: &PolicyId, spec: &PolicySpec) -> Result<()> {
        if spec.request.is_none() && spec.configuration.is_none() {
            return Ok(());
        }
        let (compilations, policy, spec) = (Arc::clone(&self.compilations), policy.clone(), spec.clone());
        let check = async move {
            let permit = compilations.acquire_owned().await;
            // A compilation that does not end in time keeps its permit until it ends.
            let compile = move || {
                let _permit = permit;
                match spec.configuration {
                    Some(configuration) => {
                        Content::compile("spec", &policy, configuration, &spec.settings).err().into_iter().collect()
                    }
                    None => proviso_programs::check("spec", &spec),
                }
            };
            tokio::task::spawn_blocking(compile).await
        };
        match tokio::time::timeout(COMPILE_TIMEOUT, check).await {
            Ok(Ok(errors)) if errors.is_empty() => Ok(()),
            Ok(Ok(errors)) => {
                let violations = errors.into_iter();
                let violations = violations.map(|error| FieldViolation {
                    field: error.field,
                    description: format!("does not compile: {}", error.message),
                });
                Err(Error::violations(violations.collect()))
            }
            Ok(Err(stopped)) => Err(Error::new(Code::Internal, "COMPILER", format!("the compiler stopped: {stopped}"))),
            Err(_) => {
                let message = format!(
                    "the program was not compiled within {} s: make it smaller, or try again if the server compiles others",
                    COMPILE_TIMEOUT.as_secs()
                );
                Err(Error::new(Code::Unavailable, "COMPILER_BUSY", message))
            }
        }
    }
}

impl PolicyStore for FolderStore {
    async fn policies(&self, _: Option<&Caller>, namespace: Option<&str>) -> Result<Vec<StoredPolicy>> {
        let namespace = namespace.map(ToOwned::to_owned);
        self.folder.run(move |source, _| Ok(source.stored_policies(namespace.as_deref()))).await
    }

    async fn policy_with_uid(&self, uid: &str) -> Result<Option<PolicyId>> {
        let uid = uid.to_owned();
        self.folder.run(move |source, _| Ok(source.policy_with_uid(&uid))).await
    }

    async fn tenants(&self) -> Result<NamespaceTenants> {
        self.folder.run(|source, _| Ok(source.tenants())).await
    }

    fn serving_timeout(&self) -> Duration {
        proviso_rest_api::SERVING_TIMEOUT
    }

    async fn policy(&self, _: Option<&Caller>, id: &PolicyId) -> Result<StoredPolicy> {
        let id = id.clone();
        self.folder.run(move |source, _| source.stored_policy(&id)).await
    }

    async fn create_policy(&self, _: Option<&Caller>, id: &PolicyId, content: Change) -> Result<StoredPolicy> {
        self.check_program(id, &content.spec).await?;
        let id = id.clone();
        self.folder.run(move |source, folder| source.create_policy(folder, &id, content)).await
    }

    async fn update_policy(
        &self,
        _: Option<&Caller>,
        id: &PolicyId,
        revision: &str,
        content: Change,
    ) -> Result<StoredPolicy> {
        self.check_program(id, &content.spec).await?;
        let (id, revision) = (id.clone(), revision.to_owned());
        self.folder.run(move |source, folder| source.update_policy(folder, &id, &revision, content)).await
    }

    async fn delete_policy(&self, _: Option<&Caller>, id: &PolicyId, etag: Option<&str>) -> Result<StoredPolicy> {
        let (id, etag) = (id.clone(), etag.map(ToOwned::to_owned));
        self.folder.run(move |source, folder| source.delete_policy(folder, &id, etag.as_deref())).await
    }

    async fn experiments(&self, _: Option<&Caller>, policy: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        let policy = policy.cloned();
        let experiments = self.folder.run(move |source, _| Ok(source.stored_experiments(policy.as_ref()))).await?;
        Ok(experiments.into_iter().map(|experiment| self.with_canaries(experiment)).collect())
    }

    async fn experiment(&self, _: Option<&Caller>, name: &ExperimentName) -> Result<StoredExperiment> {
        let name = name.clone();
        let experiment = self.folder.run(move |source, _| source.stored_experiment(&name)).await?;
        Ok(self.with_canaries(experiment))
    }

    async fn create_experiment(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        content: Change,
    ) -> Result<StoredExperiment> {
        let name = name.clone();
        self.folder.run(move |source, folder| source.create_experiment(folder, &name, content)).await
    }

    async fn update_experiment(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        revision: &str,
        content: Change,
    ) -> Result<StoredExperiment> {
        let (name, revision) = (name.clone(), revision.to_owned());
        self.folder.run(move |source, folder| source.update_experiment(folder, &name, &revision, content)).await
    }

    async fn delete_experiment(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        etag: Option<&str>,
    ) -> Result<StoredExperiment> {
        let (name, etag) = (name.clone(), etag.map(ToOwned::to_owned));
        self.folder.run(move |source, folder| source.delete_experiment(folder, &name, etag.as_deref())).await
    }

    async fn preview(&self, _: Option<&Caller>, name: &ExperimentName, change: Preview) -> Result<StoredExperiment> {
        let name = name.clone();
        self.folder.run(move |source, _| source.preview(&name, change)).await
    }

    async fn commit(
        &self,
        _: Option<&Caller>,
        name: &ExperimentName,
        committing: &CommitPreconditions,
    ) -> Result<StoredPolicy> {
        let (name, committing) = (name.clone(), committing.clone());
        self.folder.run(move |source, folder| source.commit(folder, &name, &committing)).await
    }

    async fn progress(&self, _: Option<&Caller>, awaited: &AwaitedEffect) -> Result<Progress> {
        let awaited = awaited.clone();
        self.folder.run(move |source, _| Ok(source.progress(&awaited))).await
    }

    async fn create_operation(&self, operation: StoredOperation) -> Result<()> {
        self.folder
            .run(move |source, _| {
                source.create_operation(operation);
                Ok(())
            })
            .await
    }

    async fn operation(&self, _: Option<&Caller>, id: &str) -> Result<StoredOperation> {
        let id = id.to_owned();
        self.folder.run(move |source, _| source.operation(&id)).await
    }

    async fn operations(&self, _: Option<&Caller>) -> Result<Vec<OperationSummary>> {
        self.folder.run(|source, _| Ok(source.all_operations())).await
    }

    async fn finish_operation(&self, id: &str, result: OperationResult) -> Result<StoredOperation> {
        let id = id.to_owned();
        self.folder.run(move |source, _| source.finish_operation(&id, result)).await
    }
}
