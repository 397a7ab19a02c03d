//! Policies and experiments as objects of a cluster. Nothing is kept here: every answer is what the API server says.

mod access;
pub mod commit;
mod failure;
mod object;
mod progress;

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::PreviewMetadata;
use proviso_crds::names::field_managers;
use serde_json::json;

use crate::error::{Code, Error};
use crate::operation::Awaited;
use crate::store::{
    Caller, Change, Committing, ExperimentName, PolicyStore, Preview, Progress, StoredExperiment, StoredPolicy,
};
use commit::Commit;
use failure::from_kube;
use object::Kind;

pub use access::{Access, Authorizer, Everyone};

/// How often a change is tried that others came before.
const ATTEMPTS: usize = 5;

type Result<T> = std::result::Result<T, Error>;

/// The store of a cluster. The client's own rights must cover everything; what a caller may do is for the authorizer.
#[derive(Clone)]
pub struct Kubernetes<A> {
    client: Client,
    authorizer: A,
}

impl<A> fmt::Debug for Kubernetes<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubernetes").finish_non_exhaustive()
    }
}

impl<A: Authorizer> Kubernetes<A> {
    #[must_use]
    pub fn new(client: Client, authorizer: A) -> Self {
        Self { client, authorizer }
    }

    /// Objects of one namespace, or the cluster's own.
    fn api(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = kind.resource(namespace.is_some());
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    async fn allow(
        &self,
        caller: Option<&Caller>,
        verb: &'static str,
        (kind, subresource): (Kind, Option<&'static str>),
        policy: &PolicyId,
        name: &str,
    ) -> Result<()> {
        let namespace = policy.namespace().map(ToOwned::to_owned);
        let resource = kind.plural(namespace.is_some());
        let access = Access { verb, resource, subresource, namespace, name: Some(name.to_owned()) };
        self.authorizer.authorize(caller, &access).await
    }

    async fn allow_policy(&self, caller: Option<&Caller>, verb: &'static str, id: &PolicyId) -> Result<()> {
        self.allow(caller, verb, (Kind::Policy, None), id, id.name()).await
    }

    async fn allow_experiment(
        &self,
        caller: Option<&Caller>,
        verb: &'static str,
        name: &ExperimentName,
        subresource: Option<&'static str>,
    ) -> Result<()> {
        self.allow(caller, verb, (Kind::Experiment, subresource), &name.policy, &name.name).await
    }

    async fn get_policy(&self, id: &PolicyId) -> Result<DynamicObject> {
        let found = self.api(Kind::Policy, id.namespace()).get(id.name()).await;
        found.map_err(|error| from_kube(&error, &format!("policies/{id}")))
    }

    /// The experiment, if it is one of this policy.
    async fn get_experiment(&self, name: &ExperimentName) -> Result<DynamicObject> {
        let found = self.api(Kind::Experiment, name.policy.namespace()).get(&name.name).await;
        let found = found.map_err(|error| from_kube(&error, &name.to_string()))?;
        if object::policy_of(&found) == Some(name.policy.name()) {
            Ok(found)
        } else {
            Err(Error::not_found(&name.to_string()))
        }
    }

    async fn replace(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        object: &DynamicObject,
        name: &str,
    ) -> Result<DynamicObject> {
        let parameters = PostParams { field_manager: Some(field_managers::API.to_owned()), ..PostParams::default() };
        let replaced = self.api(kind, namespace).replace(&object.name_any(), &parameters, object).await;
        replaced.map_err(|error| from_kube(&error, name))
    }

    /// Everything of a kind that can be read, in one namespace, or in all and the cluster.
    async fn list(&self, caller: Option<&Caller>, kind: Kind, policy: Option<&PolicyId>) -> Result<Vec<DynamicObject>> {
        let scopes = match policy {
            Some(policy) => vec![(policy.namespace().is_some(), policy.namespace())],
            None => vec![(false, None), (true, None)],
        };
        let mut objects = Vec::new();
        for (is_namespaced, namespace) in scopes {
            let (resource, scope) = (kind.plural(is_namespaced), namespace.map(ToOwned::to_owned));
            let access = Access { verb: "list", resource, subresource: None, namespace: scope, name: None };
            self.authorizer.authorize(caller, &access).await?;
            let api: Api<DynamicObject> = match namespace {
                Some(_) => self.api(kind, namespace),
                None => Api::all_with(self.client.clone(), &kind.resource(is_namespaced)),
            };
            let list = api.list(&ListParams::default()).await;
            objects.extend(list.map_err(|error| from_kube(&error, kind.plural(is_namespaced)))?.items);
        }
        Ok(objects)
    }

    async fn list_experiments(
        &self,
        caller: Option<&Caller>,
        policy: Option<&PolicyId>,
    ) -> Result<Vec<StoredExperiment>> {
        let objects = self.list(caller, Kind::Experiment, policy).await?;
        // One that cannot be read must not hide the others: the operator tells its owner.
        let experiments = objects.iter().filter_map(|object| object::experiment(object).ok());
        Ok(experiments.filter(|experiment| policy.is_none_or(|policy| experiment.name.policy == *policy)).collect())
    }

    async fn create(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        object: &DynamicObject,
        name: &str,
    ) -> Result<DynamicObject> {
        let parameters = PostParams { field_manager: Some(field_managers::API.to_owned()), ..PostParams::default() };
        let created = self.api(kind, namespace).create(&parameters, object).await;
        created.map_err(|error| from_kube(&error, name))
    }

    /// Deletes exactly this object, if `is_exact` exactly this version of it.
    async fn delete(&self, kind: Kind, object: &DynamicObject, name: &str, is_exact: bool) -> Result<()> {
        let resource_version = object.resource_version().filter(|_| is_exact);
        let preconditions = Some(Preconditions { uid: object.uid(), resource_version });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let namespace = object.namespace();
        let deleted = self.api(kind, namespace.as_deref()).delete(&object.name_any(), &parameters).await;
        deleted.map(|_| ()).map_err(|error| from_kube(&error, name))
    }

    /// Deletes the version that the etag is of, or any; what it was.
    async fn delete_version(&self, of: Target<'_>, etag: Option<&str>) -> Result<DynamicObject> {
        let (kind, name) = match of {
            Target::Policy(id) => (Kind::Policy, format!("policies/{id}")),
            Target::Experiment(name) => (Kind::Experiment, name.to_string()),
        };
        for _ in 0..ATTEMPTS {
            let object = match of {
                Target::Policy(id) => self.get_policy(id).await?,
                Target::Experiment(name) => self.get_experiment(name).await?,
            };
            if let Some(etag) = etag.filter(|etag| **etag != object::etag_of(&object)) {
                return Err(Error::stale(&name, etag));
            }
            match self.delete(kind, &object, &name, etag.is_some()).await {
                Ok(()) => return Ok(object),
                Err(error) if error.code == Code::Aborted => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::busy(&name))
    }
}

/// What is to be deleted.
#[derive(Clone, Copy)]
enum Target<'a> {
    Policy(&'a PolicyId),
    Experiment(&'a ExperimentName),
}

impl<A: Authorizer> PolicyStore for Kubernetes<A> {
    async fn policies(&self, caller: Option<&Caller>) -> Result<Vec<StoredPolicy>> {
        let objects = self.list(caller, Kind::Policy, None).await?;
        Ok(objects.iter().filter_map(|object| object::policy(object).ok()).collect())
    }

    async fn policy(&self, caller: Option<&Caller>, id: &PolicyId) -> Result<StoredPolicy> {
        self.allow_policy(caller, "get", id).await?;
        object::policy(&self.get_policy(id).await?)
    }

    async fn create_policy(&self, caller: Option<&Caller>, id: &PolicyId, content: Change) -> Result<StoredPolicy> {
        self.allow_policy(caller, "create", id).await?;
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
        self.allow_policy(caller, "update", id).await?;
        let name = format!("policies/{id}");
        let mut object = self.get_policy(id).await?;
        if object.resource_version().as_deref() != Some(revision) {
            return Err(Error::busy(&name));
        }
        object::annotate(&mut object, content.annotations);
        object.data["spec"] = json!(content.spec);
        object::policy(&self.replace(Kind::Policy, id.namespace(), &object, &name).await?)
    }

    /// The policy first, because it may be another version than is meant; the operator finishes what breaks off here.
    async fn delete_policy(&self, caller: Option<&Caller>, id: &PolicyId, etag: Option<&str>) -> Result<StoredPolicy> {
        self.allow_policy(caller, "delete", id).await?;
        let experiments = self.list_experiments(caller, Some(id)).await?;
        for experiment in &experiments {
            self.allow_experiment(caller, "delete", &experiment.name, None).await?;
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
        self.allow_experiment(caller, "get", name, None).await?;
        object::experiment(&self.get_experiment(name).await?)
    }

    async fn create_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        content: Change,
    ) -> Result<StoredExperiment> {
        self.allow_experiment(caller, "create", name, None).await?;
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
        self.allow_experiment(caller, "update", name, None).await?;
        let mut object = self.get_experiment(name).await?;
        if object.resource_version().as_deref() != Some(revision) {
            return Err(Error::busy(&name.to_string()));
        }
        object::annotate(&mut object, content.annotations);
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
        self.allow_experiment(caller, "delete", name, None).await?;
        object::experiment(&self.delete_version(Target::Experiment(name), etag).await?)
    }

    async fn preview(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        change: Preview,
    ) -> Result<StoredExperiment> {
        let subresource = if change == Preview::Start { "start" } else { "stop" };
        self.allow_experiment(caller, "create", name, Some(subresource)).await?;
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
        Err(Error::busy(&name.to_string()))
    }

    async fn commit(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        committing: &Committing,
    ) -> Result<StoredPolicy> {
        self.allow_experiment(caller, "create", name, Some("commit")).await?;
        self.allow_policy(caller, "update", &name.policy).await?;
        self.allow_experiment(caller, "delete", name, None).await?;
        Commit::new(self, name, committing).run().await
    }

    async fn progress(&self, caller: Option<&Caller>, awaited: &Awaited) -> Result<Progress> {
        let found = match (awaited.effect, awaited.experiment()) {
            (crate::Effect::Commit, _) | (_, None) => {
                self.allow_policy(caller, "get", &awaited.policy).await?;
                self.get_policy(&awaited.policy).await
            }
            (_, Some(name)) => {
                self.allow_experiment(caller, "get", &name, None).await?;
                self.get_experiment(&name).await
            }
        };
        match found {
            Ok(object) => progress::of(awaited, Some(&object)),
            Err(error) if error.code == Code::NotFound => progress::of(awaited, None),
            Err(error) => Err(error),
        }
    }
}
