//! The client of a cluster: requests to the API server, with errors that name the request.

mod action;
mod connect;
mod experiments;
mod policy_bodies;
mod scope;
mod subscriptions;
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
use crate::objects::{PolicyObject, RevisionObject, SubscriptionName};
use crate::policy_ref::PolicyRef;

pub use action::Action;
pub use scope::Scope;
pub use watched::Watched;

const REVISIONS: &str = "policyrevisions.proviso.dev";
/// The namespace of Events about cluster-scoped objects.
const CLUSTER_EVENTS_NAMESPACE: &str = "default";
/// The smallest similarity of a name that is suggested, from 0 to 1.
const MIN_SIMILARITY: f32 = 0.6;

/// A client of a cluster, and the namespace of the user.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// A client without retries, for actions: an action may have succeeded although its response is an error.
    client_without_retries: Client,
    /// The URL of the API server, for messages.
    server: String,
    namespace: String,
    /// True if an argument names the namespace, false if it is that of the kubeconfig.
    is_namespace_given: bool,
    proviso_namespace: String,
}

impl Cluster {
    /// Returns the default namespace for names without one.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the namespace of the operator and of the revisions.
    #[must_use]
    pub fn proviso_namespace(&self) -> &str {
        &self.proviso_namespace
    }

    /// Finds the policy or the experiment that the user names.
    ///
    /// # Errors
    /// When no object or more than one has this name, or a request fails.
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

    /// Returns the error for an object that does not exist, with similar names.
    async fn missing<T: Pair>(&self, name: &str, candidates: Vec<PolicyId>) -> Result<Error, Error> {
        // The search includes all namespaces, because users often forget the namespace.
        let mut forbidden = Vec::new();
        let mut ids = Vec::new();
        for is_namespaced in [false, true] {
            let everywhere = self.list::<T>(is_namespaced, None).await;
            let found = match everywhere {
                Err(Error::Forbidden { .. }) if is_namespaced => self.list::<T>(true, Some(&self.namespace)).await,
                found => found,
            };
            match found {
                Ok(objects) => ids.extend(objects.iter().filter_map(id)),
                Err(Error::Forbidden { access, .. }) => forbidden.push(access),
                Err(error) => return Err(error),
            }
        }
        let similar = similar_ids(name, &ids);
        Ok(Error::Missing(Missing { kinds: T::KINDS, show: Some(T::SHOW), candidates, similar, forbidden }))
    }

    /// Returns the policy or the experiment of this id; `None` if it does not exist.
    ///
    /// # Errors
    /// When the request fails, or the object is invalid.
    pub async fn get<T: Pair>(&self, id: &PolicyId) -> Result<Option<T>, Error> {
        let access = T::access("get", id);
        let object = self.api_of::<T>(id).get_opt(id.name()).await.map_err(|error| self.error(error, access))?;
        let object = object.map(|object| T::read(&object)).transpose();
        object.map_err(|error| Error::Malformed { what: id.to_string(), error })
    }

    /// Returns the objects of both kinds of a pair: all cluster-scoped objects, and the namespaced objects of the user's
    /// namespace or of all namespaces.
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
        // If the user may read neither kind, the result would be empty without an error.
        if refused.len() == 2 { Err(refused.swap_remove(1)) } else { Ok(found) }
    }

    /// Returns all objects in the namespace of `id`; if `id` is cluster-scoped, all cluster-scoped objects.
    ///
    /// # Errors
    /// When the request fails, for example without permission.
    pub async fn in_namespace_of<T: Pair>(&self, id: &PolicyId) -> Result<Found<T>, Error> {
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        found.read(&self.list::<T>(id.namespace().is_some(), id.namespace()).await?, T::read);
        Ok(found)
    }

    /// Lists the objects of one kind. `namespace` is `None` for all namespaces.
    async fn list<T: Pair>(&self, is_namespaced: bool, namespace: Option<&str>) -> Result<Vec<DynamicObject>, Error> {
        let access = T::access_to_many("list", is_namespaced, namespace);
        let api = self.api::<T>(is_namespaced, namespace);
        Ok(api.list(&ListParams::default()).await.map_err(|error| self.error(error, access))?.items)
    }

    /// Returns the revisions of a policy that are kept, newest first.
    ///
    /// # Errors
    /// When the request fails, for example without permission.
    pub async fn revisions(&self, policy: &PolicyObject) -> Result<Found<RevisionObject>, Error> {
        let namespace = Some(self.proviso_namespace.clone());
        let access = Access { verb: "list", resource: REVISIONS, subresource: None, namespace };
        let of_policy = ListParams::default().labels(&format!("{POLICY_LABEL}={}", policy.uid));
        let revision = ApiResource::erase::<PolicyRevision>(&());
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &self.proviso_namespace, &revision);
        let objects = api.list(&of_policy).await.map_err(|error| self.error(error, access))?.items;
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        found.read(&objects, RevisionObject::read);
        // A user may set the label on any revision, so the reference in the spec decides.
        found.items.retain(|revision| revision.policy_uid == policy.uid);
        found.items.sort_by_key(|revision| std::cmp::Reverse(revision.generation));
        Ok(found)
    }

    /// Returns the Events of a policy, in the order of the API server.
    ///
    /// # Errors
    /// When the request fails, for example without permission.
    pub async fn events(&self, policy: &PolicyObject) -> Result<Vec<Event>, Error> {
        let namespace = policy.id.namespace().unwrap_or(CLUSTER_EVENTS_NAMESPACE);
        let namespace_of_events = Some(namespace.to_owned());
        let access = Access { verb: "list", resource: "events", subresource: None, namespace: namespace_of_events };
        let of_policy = ListParams::default().fields(&format!("involvedObject.uid={}", policy.uid));
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        Ok(api.list(&of_policy).await.map_err(|error| self.error(error, access))?.items)
    }

    /// Requests a rollback of the policy from the operator, by an annotation.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn request_rollback(&self, policy: &PolicyObject, generation: i64) -> Result<(), Error> {
        let access = PolicyObject::access("patch", &policy.id);
        // The uid prevents a change of a later policy with the same name.
        let annotation = json!({ROLLBACK_TO: generation.to_string()});
        let patch = Patch::Merge(json!({"metadata": {"uid": policy.uid, "annotations": annotation}}));
        let patched =
            self.api_of::<PolicyObject>(&policy.id).patch(policy.id.name(), &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| self.error(error, access))
    }

    fn api_of<T: Pair>(&self, id: &PolicyId) -> Api<DynamicObject> {
        self.api::<T>(id.namespace().is_some(), id.namespace())
    }

    /// Returns the API of one kind. `namespace` is `None` for all namespaces.
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
            // The 404 of a missing object has a reason; the 404 of a path that is not served has none.
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

/// Returns the ids of the objects that a reference may mean in a namespace. `is_given` is true if an argument names the
/// namespace, and false if it is that of the kubeconfig.
///
/// # Errors
/// When the namespace is invalid, or differs from that of an id.
pub fn candidates(reference: &PolicyRef, namespace: &str, is_given: bool) -> Result<Vec<PolicyId>, Error> {
    if let PolicyRef::Id(id) = reference
        && let Some(of) = id.namespace().filter(|it| is_given && *it != namespace)
    {
        return Err(Error::Usage(format!("{id} is in the namespace {of}, but --namespace says {namespace}")));
    }
    reference.candidates(namespace).map_err(|error| Error::Usage(format!("--namespace: {error}")))
}

/// Returns the ids with a similar name, at most 3.
#[must_use]
pub fn similar_ids(name: &str, ids: &[PolicyId]) -> Vec<PolicyId> {
    let names: Vec<_> = ids.iter().map(PolicyId::name).collect();
    let close = similar::get_close_matches(name, &names, 3, MIN_SIMILARITY);
    ids.iter().filter(|id| close.contains(&id.name())).take(3).cloned().collect()
}

/// Returns the names of subscriptions that are equal or similar to `name`, at most 3. Equal names are in other namespaces.
#[must_use]
pub fn similar_names(name: &str, names: Vec<SubscriptionName>) -> Vec<SubscriptionName> {
    let own: Vec<_> = names.iter().map(|it| it.name.as_str()).collect();
    let close: Vec<_> =
        similar::get_close_matches(name, &own, 3, MIN_SIMILARITY).into_iter().map(str::to_owned).collect();
    names.into_iter().filter(|it| close.contains(&it.name)).take(3).collect()
}

fn id(object: &DynamicObject) -> Option<PolicyId> {
    PolicyId::new(object.namespace().as_deref(), &object.name_any()).ok()
}
