//! The implementation of [`PolicyStore`] for a cluster. Each method first calls the authorizer, then reads or changes the
//! objects.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use proviso_core::PolicyId;
use proviso_crds::PreviewMetadata;
use proviso_crds::names::field_managers;
use serde_json::json;

use super::commit::Commit;
use super::failure::from_kube;
use super::object::{self, Kind};
use super::progress;
use super::{ATTEMPTS, Authorizer, Kubernetes, Result, Target};
use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::operation::{AwaitedEffect, Effect, Progress};
use crate::store::{Caller, Change, CommitPreconditions, PolicyStore, Preview, StoredExperiment, StoredPolicy};

impl<A: Authorizer> PolicyStore for Kubernetes<A> {
    async fn policies(&self, caller: Option<&Caller>) -> Result<Vec<StoredPolicy>> {
        let objects = self.list(caller, Kind::Policy, None).await?;
        Ok(objects.iter().filter_map(|object| object::policy(object).ok()).collect())
    }

    async fn policy(&self, caller: Option<&Caller>, id: &PolicyId) -> Result<StoredPolicy> {
        self.authorize_policy(caller, "get", id).await?;
        object::policy(&self.get_policy(id).await?)
    }

    async fn create_policy(&self, caller: Option<&Caller>, id: &PolicyId, content: Change) -> Result<StoredPolicy> {
        self.authorize_policy(caller, "create", id).await?;
        let object = object::new_policy(id, &content);
        object::policy(&self.create(Kind::Policy, id.namespace(), &object, &format!("policies/{id}")).await?)
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
        object::replace_annotations(&mut object, content.annotations);
        object.data["spec"] = json!(content.spec);
        object::policy(&self.replace(Kind::Policy, id.namespace(), &object, &name).await?)
    }

    /// Deletes the policy before its experiments: if the etag does not match, the experiments must stay. The operator
    /// deletes the experiments that an interrupted call leaves behind.
    async fn delete_policy(&self, caller: Option<&Caller>, id: &PolicyId, etag: Option<&str>) -> Result<StoredPolicy> {
        self.authorize_policy(caller, "delete", id).await?;
        let experiments = self.list_experiments(caller, Some(id)).await?;
        for experiment in &experiments {
            self.authorize_experiment(caller, "delete", &experiment.name, None).await?;
        }
        let policy = object::policy(&self.delete_version(Target::Policy(id), etag).await?)?;
        for experiment in experiments {
            match self.delete_version(Target::Experiment(&experiment.name), None).await {
                Ok(_) => {}
                Err(error) if error.code == Code::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(policy)
    }

    async fn experiments(&self, caller: Option<&Caller>, policy: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        self.list_experiments(caller, policy).await
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
        self.get_policy(&name.policy).await?;
        let object = object::new_experiment(name, &content);
        let created = self.create(Kind::Experiment, name.policy.namespace(), &object, &name.to_string()).await?;
        object::experiment(&created)
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
        object::replace_annotations(&mut object, content.annotations);
        object.data["spec"]["policy"] = json!(content.spec);
        object.data["spec"]["autoStart"] = json!(content.auto_start);
        let replaced = self.replace(Kind::Experiment, name.policy.namespace(), &object, &name.to_string()).await?;
        object::experiment(&replaced)
    }

    async fn delete_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        etag: Option<&str>,
    ) -> Result<StoredExperiment> {
        self.authorize_experiment(caller, "delete", name, None).await?;
        object::experiment(&self.delete_version(Target::Experiment(name), etag).await?)
    }

    async fn preview(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        change: Preview,
    ) -> Result<StoredExperiment> {
        let subresource = if change == Preview::Start { "start" } else { "stop" };
        self.authorize_experiment(caller, "create", name, Some(subresource)).await?;
        let api = self.api(Kind::Experiment, name.policy.namespace());
        for _ in 0..ATTEMPTS {
            let object = self.get_experiment(name).await?;
            let before = object::experiment(&object)?.preview;
            let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now());
            let generation = object.metadata.generation.unwrap_or_default();
            let after = match (change, before) {
                (Preview::Start, before) => PreviewMetadata::start(before.as_ref(), generation, now),
                (Preview::Stop, Some(before)) => before.stop(now),
                (Preview::Stop, None) => {
                    let message = format!("{name} was never started: there is nothing to stop");
                    return Err(Error::new(Code::FailedPrecondition, "NOT_STARTED", message));
                }
            };
            let patch = json!({
                "metadata": {"resourceVersion": object.resource_version()},
                "status": {"previewMetadata": after},
            });
            let parameters =
                PatchParams { field_manager: Some(field_managers::API.to_owned()), ..PatchParams::default() };
            match api.patch_status(&name.name, &parameters, &Patch::Merge(patch)).await {
                Ok(patched) => return object::experiment(&patched),
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(from_kube(&error, &name.to_string())),
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
        Commit::new(self, name, committing).run().await
    }

    async fn progress(&self, caller: Option<&Caller>, awaited: &AwaitedEffect) -> Result<Progress> {
        let found = match (awaited.effect, awaited.experiment()) {
            (Effect::Commit, _) | (_, None) => {
                self.authorize_policy(caller, "get", &awaited.policy).await?;
                self.get_policy(&awaited.policy).await
            }
            (_, Some(name)) => {
                self.authorize_experiment(caller, "get", &name, None).await?;
                self.get_experiment(&name).await
            }
        };
        match found {
            Ok(object) => progress::compute(awaited, Some(&object)),
            Err(error) if error.code == Code::NotFound => progress::compute(awaited, None),
            Err(error) => Err(error),
        }
    }
}
