//! The store over a Kubernetes cluster: policies and experiments are objects of the API server, and operations are ConfigMaps. The
//! store caches nothing.

mod access;
pub mod commit;
mod failure;
mod impersonation;
mod lease;
mod object;
pub mod operations;
mod progress;
mod request_policies;
mod store;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use proviso_core::PolicyId;
use tokio::sync::Mutex;

use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::operation::{AwaitedEffect, Effect};
use crate::store::{Caller, StoredExperiment};
use failure::from_kube;
use lease::WriteLease;
use object::Kind;

pub use access::{Access, AllowAll, Authorizer};
pub use progress::suspended_by;

/// The number of attempts of a change that conflicts with the changes of other clients.
const ATTEMPTS: usize = 5;

type Result<T> = std::result::Result<T, Error>;

/// The settings of the store.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace with the ConfigMaps of the operations: that of the operator.
    pub namespace: String,
    /// True if the store writes policies and experiments as the caller, so that the audit log of the API server names the caller.
    /// The client then needs the permission to impersonate every user. False if the store writes as itself, and records the caller
    /// in the annotation [`CHANGED_BY`](proviso_crds::names::CHANGED_BY).
    pub impersonates_callers: bool,
    /// The time for which a change of a request policy waits until all replicas serve it, before it is answered.
    pub serving_timeout: Duration,
}

/// The store of a cluster. The client needs permissions for all policies and experiments. The authorizer decides about the
/// permissions of each caller.
#[derive(Clone)]
pub struct Kubernetes<A> {
    client: Client,
    authorizer: A,
    settings: Settings,
    /// The number of operations that this store has created.
    created: Arc<AtomicUsize>,
    /// The Lease that one change of a request policy holds at a time, over all replicas.
    lease: Arc<WriteLease>,
    /// Held during the lookup of a policy by its uid.
    lookups: Arc<Mutex<()>>,
}

impl<A> fmt::Debug for Kubernetes<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubernetes").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The objects of a list.
#[derive(Clone, Copy)]
enum Scope<'a> {
    /// The cluster-scoped objects, and those of all namespaces.
    Everything,
    Cluster,
    Namespace(&'a str),
}

impl<'a> Scope<'a> {
    /// Returns the scope of a policy and of its experiments.
    fn of(policy: &'a PolicyId) -> Self {
        policy.namespace().map_or(Self::Cluster, Self::Namespace)
    }
}

impl<A: Authorizer> Kubernetes<A> {
    #[must_use]
    pub fn new(client: Client, authorizer: A, settings: Settings) -> Self {
        let lease = Arc::new(WriteLease::new(client.clone(), &settings.namespace));
        Self { client, authorizer, settings, created: Arc::default(), lease, lookups: Arc::default() }
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
        let access = Access { subresource, ..access(verb, kind, policy, name) };
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

    /// Lists the objects of a kind. A caller who may only list the objects of one namespace can list only these.
    async fn list(&self, caller: Option<&Caller>, kind: Kind, scope: Scope<'_>) -> Result<Vec<DynamicObject>> {
        let parts = match scope {
            Scope::Everything => vec![(false, None), (true, None)],
            Scope::Cluster => vec![(false, None)],
            Scope::Namespace(namespace) => vec![(true, Some(namespace))],
        };
        let mut objects = Vec::new();
        for (is_namespaced, namespace) in parts {
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

    async fn list_experiments(&self, caller: Option<&Caller>, scope: Scope<'_>) -> Result<Vec<StoredExperiment>> {
        let objects = self.list(caller, Kind::Experiment, scope).await?;
        // A malformed experiment must not hide the others. The operator reports it in its status.
        Ok(objects.iter().filter_map(|object| object::experiment(object).ok()).collect())
    }

    async fn list_experiments_of(&self, caller: Option<&Caller>, policy: &PolicyId) -> Result<Vec<StoredExperiment>> {
        let mut experiments = self.list_experiments(caller, Scope::of(policy)).await?;
        experiments.retain(|experiment| experiment.name.policy == *policy);
        Ok(experiments)
    }

    /// Deletes the target, and returns the deleted object. If `etag` is given, deletes only the version with this etag.
    async fn delete_version(
        &self,
        caller: Option<&Caller>,
        target: Target<'_>,
        etag: Option<&str>,
    ) -> Result<DynamicObject> {
        let (kind, name) = match target {
            Target::Policy(id) => (Kind::Policy, format!("policies/{id}")),
            Target::Experiment(name) => (Kind::Experiment, name.to_string()),
        };
        for _ in 0..ATTEMPTS {
            let object = match target {
                Target::Policy(id) => self.get_policy(id).await?,
                Target::Experiment(name) => self.get_experiment(name).await?,
            };
            if let Some(etag) = etag.filter(|etag| **etag != object::etag_of(&object)) {
                return Err(Error::etag_mismatch(&name, etag));
            }
            match self.delete(caller, kind, &object, &name, etag.is_some()).await {
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

/// Returns the access to a policy, or to an experiment of the policy.
fn access(verb: &'static str, kind: Kind, policy: &PolicyId, name: &str) -> Access {
    let namespace = policy.namespace().map(ToOwned::to_owned);
    let resource = kind.plural(namespace.is_some());
    Access { verb, resource, subresource: None, namespace, name: Some(name.to_owned()) }
}

/// Returns the access that a caller needs to read an operation: the permission to read the object that the operation waits for.
fn access_to_read(awaited: &AwaitedEffect) -> Access {
    match (awaited.effect, &awaited.experiment) {
        (Effect::Commit, _) | (_, None) => access("get", Kind::Policy, &awaited.policy, awaited.policy.name()),
        (_, Some(experiment)) => access("get", Kind::Experiment, &awaited.policy, experiment),
    }
}
