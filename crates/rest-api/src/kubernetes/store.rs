//! The implementation of [`PolicyStore`] for a cluster. Each method first calls the authorizer, then reads or changes the
//! objects.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use proviso_core::PolicyId;
use proviso_crds::{ExperimentStatus, PreviewMetadata};
use serde_json::json;

use super::commit::Commit;
use super::object::{self, Kind};
use super::write::Write;
use super::{ATTEMPTS, Authorizer, Kubernetes, Result, Scope, Target, access_to_read, progress};
use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::namespace_tenants::NamespaceTenants;
use crate::operation::{AwaitedEffect, Effect, OperationResult, OperationSummary, Progress, StoredOperation};
use crate::store::{Caller, Change, CommitPreconditions, PolicyStore, Preview, StoredExperiment, StoredPolicy};

impl<A: Authorizer> PolicyStore for Kubernetes<A> {
    async fn policies(&self, caller: Option<&Caller>, namespace: Option<&str>) -> Result<Vec<StoredPolicy>> {
        let scope = namespace.map_or(Scope::Everything, Scope::Namespace);
        let objects = self.list(caller, Kind::Policy, scope).await?;
        Ok(objects.iter().filter_map(|object| object::policy(object).ok()).collect())
    }

    async fn cluster_policies(&self, caller: Option<&Caller>) -> Result<Vec<StoredPolicy>> {
        let objects = self.list(caller, Kind::Policy, Scope::Cluster).await?;
        Ok(objects.iter().filter_map(|object| object::policy(object).ok()).collect())
    }

    async fn policy_with_uid(&self, uid: &str) -> Result<Option<PolicyId>> {
        self.find_uid(uid).await
    }

    async fn tenants(&self) -> Result<NamespaceTenants> {
        self.namespace_tenants().await
    }

    fn serving_timeout(&self) -> Duration {
        self.settings.serving_timeout
    }

    async fn policy(&self, caller: Option<&Caller>, id: &PolicyId) -> Result<StoredPolicy> {
        self.authorize_policy(caller, "get", id).await?;
        object::policy(&self.get_policy(id).await?)
    }

    async fn create_policy(&self, caller: Option<&Caller>, id: &PolicyId, content: Change) -> Result<StoredPolicy> {
        self.authorize_policy(caller, "create", id).await?;
        let (object, name) = (object::new_policy(id, &content), format!("policies/{id}"));
        let rehearse = self.create(caller, Kind::Policy, object.clone(), &name, Write::DryRun);
        let create = self.create(caller, Kind::Policy, object, &name, Write::Stored);
        object::policy(&Box::pin(self.write_unique(id, None, &content.spec, rehearse, create)).await?)
    }

    async fn update_policy(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        revision: &str,
        content: Change,
    ) -> Result<StoredPolicy> {
        self.authorize_policy(caller, "update", id).await?;
        let name = format!("policies/{id}");
        let mut object = self.get_policy(id).await?;
        if object.resource_version().as_deref() != Some(revision) {
            return Err(Error::concurrent_change(&name));
        }
        let before = object::policy(&object)?.spec;
        object::replace_annotations(&mut object, content.annotations);
        object.data["spec"] = json!(content.spec);
        let rehearse = self.replace(caller, Kind::Policy, object.clone(), &name, Write::DryRun);
        let replace = self.replace(caller, Kind::Policy, object, &name, Write::Stored);
        object::policy(&Box::pin(self.write_unique(id, Some(&before), &content.spec, rehearse, replace)).await?)
    }

    /// Deletes the policy before its experiments: if the etag does not match, the experiments must stay. The operator
    /// deletes the experiments that an interrupted call leaves behind.
    async fn delete_policy(&self, caller: Option<&Caller>, id: &PolicyId, etag: Option<&str>) -> Result<StoredPolicy> {
        self.authorize_policy(caller, "delete", id).await?;
        let experiments = self.list_experiments_of(caller, id).await?;
        for experiment in &experiments {
            self.authorize_experiment(caller, "delete", &experiment.name, None).await?;
        }
        let policy = object::policy(&self.delete_version(caller, Target::Policy(id), etag).await?)?;
        for experiment in experiments {
            match self.delete_version(caller, Target::Experiment(&experiment.name), None).await {
                Ok(_) => {}
                Err(error) if error.code == Code::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(policy)
    }

    async fn experiments(&self, caller: Option<&Caller>, policy: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        match policy {
            Some(policy) => self.list_experiments_of(caller, policy).await,
            None => self.list_experiments(caller, Scope::Everything).await,
        }
    }

    async fn experiments_in(&self, caller: Option<&Caller>, namespace: &str) -> Result<Vec<StoredExperiment>> {
        self.list_experiments(caller, Scope::Namespace(namespace)).await
    }

    async fn experiment(&self, caller: Option<&Caller>, name: &ExperimentName) -> Result<StoredExperiment> {
        self.authorize_experiment(caller, "get", name, None).await?;
        object::experiment(&self.get_experiment(name).await?)
    }

    async fn create_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        content: Change,
    ) -> Result<StoredExperiment> {
        self.authorize_experiment(caller, "create", name, None).await?;
        let policy = self.get_policy(&name.policy).await?;
        object::check_point(&name.policy, &policy, &content.spec).map_err(|error| Error::point_mismatch(&error))?;
        let object = object::new_experiment(name, &content);
        object::experiment(&self.create(caller, Kind::Experiment, object, &name.to_string(), Write::Stored).await?)
    }

    async fn update_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        revision: &str,
        content: Change,
    ) -> Result<StoredExperiment> {
        self.authorize_experiment(caller, "update", name, None).await?;
        let mut object = self.get_experiment(name).await?;
        if object.resource_version().as_deref() != Some(revision) {
            return Err(Error::concurrent_change(&name.to_string()));
        }
        self.record_decided(&object).await?;
        object::replace_experiment(&mut object, content)?;
        object::experiment(&self.replace(caller, Kind::Experiment, object, &name.to_string(), Write::Stored).await?)
    }

    async fn delete_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        etag: Option<&str>,
    ) -> Result<StoredExperiment> {
        self.authorize_experiment(caller, "delete", name, None).await?;
        object::experiment(&self.delete_version(caller, Target::Experiment(name), etag).await?)
    }

    async fn preview(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        change: Preview,
    ) -> Result<StoredExperiment> {
        let subresource = if change == Preview::Start { "start" } else { "stop" };
        self.authorize_experiment(caller, "create", name, Some(subresource)).await?;
        for _ in 0..ATTEMPTS {
            match self.try_preview(caller, name, change).await {
                Err(error) if error.code == Code::Aborted => {}
                result => return result,
            }
        }
        Err(Error::concurrent_change(&name.to_string()))
    }

    async fn commit(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        committing: &CommitPreconditions,
    ) -> Result<StoredPolicy> {
        self.authorize_experiment(caller, "create", name, Some("commit")).await?;
        self.authorize_policy(caller, "update", &name.policy).await?;
        self.authorize_experiment(caller, "delete", name, None).await?;
        Commit::new(self, caller, name, committing).run().await
    }

    async fn progress(&self, caller: Option<&Caller>, awaited: &AwaitedEffect) -> Result<Progress> {
        self.authorizer.authorize(caller, &access_to_read(awaited)).await?;
        let found = match (awaited.effect, awaited.experiment()) {
            (Effect::Commit, _) | (_, None) => self.get_policy(&awaited.policy).await,
            (_, Some(name)) => self.get_experiment(&name).await,
        };
        match found {
            Ok(object) => progress::compute(awaited, Some(&object)),
            Err(error) if error.code == Code::NotFound => progress::compute(awaited, None),
            Err(error) => Err(error),
        }
    }

    async fn create_operation(&self, operation: StoredOperation) -> Result<()> {
        self.store_operation(&operation).await
    }

    async fn operation(&self, caller: Option<&Caller>, id: &str) -> Result<StoredOperation> {
        self.read_operation(caller, id).await
    }

    async fn operations(&self, caller: Option<&Caller>) -> Result<Vec<OperationSummary>> {
        self.readable_operations(caller).await
    }

    async fn finish_operation(&self, id: &str, result: OperationResult) -> Result<StoredOperation> {
        self.record_result(id, result).await
    }
}

impl<A: Authorizer> Kubernetes<A> {
    /// Starts or stops the preview of the current version of the experiment. Fails with [`Code::Aborted`] if another client changes
    /// the experiment at the same time.
    async fn try_preview(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        change: Preview,
    ) -> Result<StoredExperiment> {
        let object = self.get_experiment(name).await?;
        let status: ExperimentStatus = object::status(&object)?;
        let before = status.preview_metadata;
        let now = PreviewMetadata::time_after(before.as_ref(), Timestamp::now());
        let after = match (change, before) {
            (Preview::Start, before) => {
                let ttl = time_to_live(&object::experiment(&object)?)?;
                PreviewMetadata::start(before.as_ref(), object::generation(&object), now, ttl)
            }
            (Preview::Stop, Some(before)) => before.stop(now, None),
            (Preview::Stop, None) => {
                let message = format!("{name} was never started: there is nothing to stop");
                return Err(Error::new(Code::FailedPrecondition, "NOT_STARTED", message));
            }
        };
        let name = name.to_string();
        self.record_decided(&object).await?;
        let object = self.record_caller(caller, object, &name).await?;
        let changed = self.patch_status(&object, json!({"previewMetadata": after.to_merge_patch()}), &name).await?;
        object::experiment(&changed)
    }
}

fn time_to_live(experiment: &StoredExperiment) -> Result<Duration> {
    experiment.time_to_live().ok_or_else(|| {
        let message =
            format!("{}: the time to live {:?} is invalid: update the experiment", experiment.name, experiment.ttl);
        Error::new(Code::FailedPrecondition, "INVALID_TTL", message)
    })
}
