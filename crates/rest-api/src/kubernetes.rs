//! The store over a Kubernetes cluster: policies and experiments are objects of the API server. The store caches nothing.

mod access;
pub mod commit;
mod failure;
mod object;
mod progress;
mod store;

use std::fmt;

use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::names::field_managers;

use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::store::{Caller, StoredExperiment};
use failure::from_kube;
use object::Kind;

pub use access::{Access, AllowAll, Authorizer};

/// The number of attempts of a change that conflicts with the changes of other clients.
const ATTEMPTS: usize = 5;

type Result<T> = std::result::Result<T, Error>;

/// The store of a cluster. The client needs permissions for all policies and experiments. The authorizer decides about the
/// permissions of each caller.
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

    /// Returns the API for the namespaced kind in `namespace`, or for the cluster-scoped kind if `namespace` is `None`.
    fn api(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = kind.resource(namespace.is_some());
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    async fn authorize(
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

    async fn authorize_policy(&self, caller: Option<&Caller>, verb: &'static str, id: &PolicyId) -> Result<()> {
        self.authorize(caller, verb, (Kind::Policy, None), id, id.name()).await
    }

    async fn authorize_experiment(
        &self,
        caller: Option<&Caller>,
        verb: &'static str,
        name: &ExperimentName,
        subresource: Option<&'static str>,
    ) -> Result<()> {
        self.authorize(caller, verb, (Kind::Experiment, subresource), &name.policy, &name.name).await
    }

    async fn get_policy(&self, id: &PolicyId) -> Result<DynamicObject> {
        let found = self.api(Kind::Policy, id.namespace()).get(id.name()).await;
        found.map_err(|error| from_kube(&error, &format!("policies/{id}")))
    }

    /// Returns the experiment. An experiment of another policy counts as not found.
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

    /// Lists the objects of a kind: in the scope of `policy`, or in the cluster and all namespaces if `policy` is `None`.
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
        // A malformed experiment must not hide the others. The operator reports it in its status.
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

    /// Deletes this object, but not another one of the same name. If `is_exact`, deletes it only in this version.
    async fn delete(&self, kind: Kind, object: &DynamicObject, name: &str, is_exact: bool) -> Result<()> {
        let resource_version = object.resource_version().filter(|_| is_exact);
        let preconditions = Some(Preconditions { uid: object.uid(), resource_version });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let namespace = object.namespace();
        let deleted = self.api(kind, namespace.as_deref()).delete(&object.name_any(), &parameters).await;
        deleted.map(|_| ()).map_err(|error| from_kube(&error, name))
    }

    /// Deletes the target, and returns the deleted object. If `etag` is given, deletes only the version with this etag.
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
                return Err(Error::etag_mismatch(&name, etag));
            }
            match self.delete(kind, &object, &name, etag.is_some()).await {
                Ok(()) => return Ok(object),
                Err(error) if error.code == Code::Aborted => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&name))
    }
}

/// The resource to delete.
#[derive(Clone, Copy)]
enum Target<'a> {
    Policy(&'a PolicyId),
    Experiment(&'a ExperimentName),
}
