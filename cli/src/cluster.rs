//! The cluster: all requests to the API server, with errors that name the request.

mod action;
mod connect;
mod experiments;
mod scope;
mod watch;
mod watched;

use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::client::AuthError;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::PolicyRevision;
use proviso_crds::names::{POLICY_LABEL, ROLLBACK_TO};
use serde_json::json;

use crate::access::Access;
use crate::error::{Error, Missing, root_cause};
use crate::found::{Found, Omitted};
use crate::kinds::Pair;
use crate::objects::{PolicyObject, RevisionObject};
use crate::policy_ref::PolicyRef;

pub use action::Action;
pub use scope::Scope;
pub use watched::Watched;

const REVISIONS: &str = "policyrevisions.proviso.dev";
/// Where Events of objects without a namespace are.
const EVENTS_OF_CLUSTER: &str = "default";
/// The similarity from which a name is suggested, from 0 to 1.
const LIKENESS: f32 = 0.6;

/// A cluster, and the namespace that a person works in.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// A client without retries: an action may have succeeded although its response is an error.
    once: Client,
    /// The address of the API server, for messages.
    server: String,
    namespace: String,
    /// The user named the namespace, and not only the kubeconfig.
    is_namespace_given: bool,
    proviso_namespace: String,
}

impl Cluster {
    /// Returns the namespace of names that have none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the namespace of the operator and of the revisions.
    #[must_use]
    pub fn proviso_namespace(&self) -> &str {
        &self.proviso_namespace
    }

    /// Finds the policy or the experiment that a person names.
    ///
    /// # Errors
    /// When there is none, or there are two.
    pub async fn find<T: Pair>(&self, reference: &PolicyRef) -> Result<T, Error> {
        let candidates = candidates(reference, &self.namespace, self.is_namespace_given)?;
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        for id in &candidates {
            match self.get(id).await {
                Ok(item) => found.extend(item),
                Err(error @ Error::Forbidden { .. }) => refused.push(error),
                Err(error) => return Err(error),
            }
        }
        if found.len() > 1 {
            return Err(Error::Ambiguous { what: T::PLURAL, name: reference.name().to_owned(), ids: candidates });
        }
        match found.pop() {
            Some(item) => Ok(item),
            None if refused.len() == candidates.len() => Err(refused.swap_remove(0)),
            None => Err(self.missing::<T>(reference.name(), candidates).await?),
        }
    }

    /// Returns the error that there is no such object, with similar names.
    async fn missing<T: Pair>(&self, name: &str, candidates: Vec<PolicyId>) -> Result<Error, Error> {
        // Most often the user forgot the namespace.
        let mut unseen = Vec::new();
        let mut ids = Vec::new();
        for is_namespaced in [false, true] {
            let everywhere = self.list::<T>(is_namespaced, None).await;
            let found = match everywhere {
                Err(Error::Forbidden { .. }) if is_namespaced => self.list::<T>(true, Some(&self.namespace)).await,
                found => found,
            };
            match found {
                Ok(objects) => ids.extend(objects.iter().filter_map(id)),
                Err(Error::Forbidden { access, .. }) => unseen.push(access),
                Err(error) => return Err(error),
            }
        }
        let near = near(name, &ids);
        Ok(Error::Missing(Missing { kinds: T::KINDS, show: Some(T::SHOW), candidates, near, unseen }))
    }

    /// Returns the policy or the experiment of this id; `None` if there is none.
    ///
    /// # Errors
    /// When the request fails, or the object is invalid.
    pub async fn get<T: Pair>(&self, id: &PolicyId) -> Result<Option<T>, Error> {
        let access = T::access("get", id);
        let object = self.api_of::<T>(id).get_opt(id.name()).await.map_err(|error| self.error(error, access))?;
        let object = object.map(|object| T::read(&object)).transpose();
        object.map_err(|error| Error::Malformed { what: id.to_string(), error })
    }

    /// Returns all cluster-scoped objects of a pair, and the namespaced ones of the namespace or of all namespaces.
    ///
    /// # Errors
    /// When a request fails, or the user may read neither kind.
    pub async fn all<T: Pair>(&self, of_all_namespaces: bool) -> Result<Found<T>, Error> {
        let namespace = (!of_all_namespaces).then_some(self.namespace.as_str());
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        let mut refused = Vec::new();
        let [namespaced, cluster] = T::KINDS_PLURAL;
        for (what, is_namespaced) in [(cluster, false), (namespaced, true)] {
            match self.list::<T>(is_namespaced, namespace).await {
                Ok(objects) => found.read(&objects, T::read),
                Err(error @ Error::Forbidden { .. }) => {
                    found.unseen.push(Omitted::forbidden(what, &error));
                    refused.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        // Without either kind the answer would be empty, and not an error.
        if refused.len() == 2 { Err(refused.swap_remove(1)) } else { Ok(found) }
    }

    /// Returns all objects in the namespace of `id`, or all cluster-scoped objects.
    ///
    /// # Errors
    /// When the request fails, such as without permission.
    pub async fn beside<T: Pair>(&self, id: &PolicyId) -> Result<Found<T>, Error> {
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        found.read(&self.list::<T>(id.namespace().is_some(), id.namespace()).await?, T::read);
        Ok(found)
    }

    /// `namespace`: `None` for all namespaces.
    async fn list<T: Pair>(&self, is_namespaced: bool, namespace: Option<&str>) -> Result<Vec<DynamicObject>, Error> {
        let access = T::access_to_many("list", is_namespaced, namespace);
        let api = self.api::<T>(is_namespaced, namespace);
        Ok(api.list(&ListParams::default()).await.map_err(|error| self.error(error, access))?.items)
    }

    /// Returns the revisions that are kept of a policy, the newest first.
    ///
    /// # Errors
    /// When the request fails, such as without permission.
    pub async fn revisions(&self, policy: &PolicyObject) -> Result<Found<RevisionObject>, Error> {
        let namespace = Some(self.proviso_namespace.clone());
        let access = Access { verb: "list", resource: REVISIONS, subresource: None, namespace };
        let of_policy = ListParams::default().labels(&format!("{POLICY_LABEL}={}", policy.uid));
        let revision = ApiResource::erase::<PolicyRevision>(&());
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &self.proviso_namespace, &revision);
        let objects = api.list(&of_policy).await.map_err(|error| self.error(error, access))?.items;
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        found.read(&objects, RevisionObject::read);
        // Anybody may set the label.
        found.items.retain(|revision| revision.policy_uid == policy.uid);
        found.items.sort_by_key(|revision| std::cmp::Reverse(revision.generation));
        Ok(found)
    }

    /// Returns the Events of a policy, in the order of the API server.
    ///
    /// # Errors
    /// When the request fails, such as without permission.
    pub async fn events(&self, policy: &PolicyObject) -> Result<Vec<Event>, Error> {
        let namespace = policy.id.namespace().unwrap_or(EVENTS_OF_CLUSTER);
        let namespace_of_events = Some(namespace.to_owned());
        let access = Access { verb: "list", resource: "events", subresource: None, namespace: namespace_of_events };
        let of_policy = ListParams::default().fields(&format!("involvedObject.uid={}", policy.uid));
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        Ok(api.list(&of_policy).await.map_err(|error| self.error(error, access))?.items)
    }

    /// Requests a rollback of the policy from the operator.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn ask_for_rollback(&self, policy: &PolicyObject, generation: i64) -> Result<(), Error> {
        let access = PolicyObject::access("patch", &policy.id);
        // With the uid, so that a later policy of the same name is not changed.
        let annotation = json!({ROLLBACK_TO: generation.to_string()});
        let patch = Patch::Merge(json!({"metadata": {"uid": policy.uid, "annotations": annotation}}));
        let patched =
            self.api_of::<PolicyObject>(&policy.id).patch(policy.id.name(), &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| self.error(error, access))
    }

    fn api_of<T: Pair>(&self, id: &PolicyId) -> Api<DynamicObject> {
        self.api::<T>(id.namespace().is_some(), id.namespace())
    }

    /// `namespace`: `None` for all namespaces.
    fn api<T: Pair>(&self, is_namespaced: bool, namespace: Option<&str>) -> Api<DynamicObject> {
        let (client, resource) = (self.client.clone(), T::resource(is_namespaced));
        match namespace.filter(|_| is_namespaced) {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        }
    }

    fn error(&self, error: kube::Error, access: Access) -> Error {
        let server = self.server.clone();
        match error {
            kube::Error::Api(status) if status.code == 401 => Error::Unauthorized { server, cause: status.message },
            kube::Error::Api(status) if status.is_forbidden() => Error::Forbidden { access, cause: status.message },
            // An object that is not there has a reason; a path that is not there has none.
            kube::Error::Api(status) if status.code == 404 && !status.is_not_found() => {
                Error::NotInstalled(access.resource)
            }
            kube::Error::Api(status) => Error::Refused { access, cause: status.message },
            kube::Error::Auth(error) => Error::Unauthorized { server, cause: error.to_string() },
            kube::Error::Service(error) => match error.downcast_ref::<AuthError>() {
                Some(error) => Error::Unauthorized { server, cause: error.to_string() },
                None => Error::Unreachable { server, cause: root_cause(&*error) },
            },
            kube::Error::HyperError(error) => Error::Unreachable { server, cause: root_cause(&error) },
            error => Error::Refused { access, cause: error.to_string() },
        }
    }
}

/// Returns the objects that a person may mean, seen from a namespace. `is_given`: the user named the namespace, and not only
/// the kubeconfig.
///
/// # Errors
/// When the namespace is invalid, or an id has another one.
pub fn candidates(reference: &PolicyRef, namespace: &str, is_given: bool) -> Result<Vec<PolicyId>, Error> {
    if let PolicyRef::Id(id) = reference
        && let Some(of) = id.namespace().filter(|it| is_given && *it != namespace)
    {
        return Err(Error::Usage(format!("{id} is of the namespace {of}, and --namespace says {namespace}")));
    }
    reference.candidates(namespace).map_err(|error| Error::Usage(format!("--namespace: {error}")))
}

/// Returns the ids with a similar name, at most 3.
#[must_use]
pub fn near(name: &str, ids: &[PolicyId]) -> Vec<PolicyId> {
    let names: Vec<_> = ids.iter().map(PolicyId::name).collect();
    let close = similar::get_close_matches(name, &names, 3, LIKENESS);
    ids.iter().filter(|id| close.contains(&id.name())).take(3).cloned().collect()
}

fn id(object: &DynamicObject) -> Option<PolicyId> {
    PolicyId::new(object.namespace().as_deref(), &object.name_any()).ok()
}
