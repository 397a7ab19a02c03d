//! The objects of a cluster. An informer lists and watches each kind that policies read; all policies share it. Other queries go
//! to the API server, and identical concurrent queries share one request.

mod budget;
mod informer;
mod queries;
mod resource;
mod store;
mod weight;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use kube::Client;
use serde_json::Value;

use crate::error::HostCallError;
use crate::kind::Kind;
use crate::kubernetes::selector::ObjectSelector;
use budget::Budget;
use queries::ApiServerQueries;

pub use budget::Limits;
pub(crate) use informer::Informer;
pub(crate) use queries::ObjectList;
pub(crate) use resource::ResolvedKind;

/// A kind, and a namespace or `None` for all namespaces.
type Key = (Kind, Option<String>);

/// A cluster that policies read.
pub struct Cluster {
    client: Client,
    budget: Budget,
    informers: Mutex<HashMap<Key, Weak<Informer>>>,
    namespaces: OnceLock<Arc<Informer>>,
    queries: ApiServerQueries,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Returns the cluster of `client`. The client must have a read timeout, or a lost connection would block a watch forever.
    #[must_use]
    pub fn new(client: Client, limits: Limits) -> Self {
        let budget = Budget::new(limits);
        Self {
            queries: ApiServerQueries::new(client.clone(), budget.clone()),
            client,
            budget,
            informers: Mutex::default(),
            namespaces: OnceLock::new(),
        }
    }

    /// Returns the informer of a kind in one namespace, or in all. The informer runs until the last reference is dropped.
    pub(crate) fn informer(&self, kind: &Kind, namespace: Option<&str>) -> Arc<Informer> {
        let mut informers = self.informers.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind.clone(), namespace.map(ToOwned::to_owned));
        if let Some(informer) = informers.get(&key).and_then(Weak::upgrade) {
            return informer;
        }
        informers.retain(|_, informer| informer.strong_count() > 0);
        let (kind, namespace) = key.clone();
        let informer = Arc::new(Informer::start(self.client.clone(), kind, namespace, &self.budget));
        informers.insert(key, Arc::downgrade(&informer));
        informer
    }

    /// Returns the informer of Namespaces. The first call starts it, and it runs as long as the cluster lives: each policy may
    /// read the Namespace of its request.
    pub(crate) fn namespaces(&self) -> Arc<Informer> {
        Arc::clone(self.namespaces.get_or_init(|| self.informer(&Kind::namespace(), None)))
    }

    /// Lists objects by a field selector that only the API server can evaluate.
    pub(crate) async fn select(
        &self,
        informer: &Informer,
        resolved: &ResolvedKind,
        namespace: Option<&str>,
        fields: &str,
    ) -> Result<Arc<ObjectList>, HostCallError> {
        let own = informer.namespace();
        self.queries.list(resolved, own, namespace.or(own), fields).await
    }

    /// Returns an object; `None` if it does not exist. `is_fresh` bypasses all caches. An object that the informer does not have
    /// may be new, so the API server is queried for it.
    pub(crate) async fn get(
        &self,
        informer: &Informer,
        resolved: &ResolvedKind,
        namespace: Option<&str>,
        name: &str,
        is_fresh: bool,
    ) -> Result<Option<Arc<Value>>, HostCallError> {
        if is_fresh {
            return self.queries.get_uncached(resolved, namespace, name).await;
        }
        match informer.get(namespace, name)? {
            Some(object) => Ok(Some(object)),
            None => self.queries.get(resolved, namespace, name).await,
        }
    }

    /// Returns the status of a `SubjectAccessReview`. `is_fresh` bypasses the cache.
    pub(crate) async fn can_i(
        &self,
        review: SubjectAccessReviewSpec,
        is_fresh: bool,
    ) -> Result<Arc<Value>, HostCallError> {
        if is_fresh { self.queries.review_uncached(review).await } else { self.queries.review(review).await }
    }
}

/// Returns the objects that the selector matches.
pub(crate) fn select(objects: &[Arc<Value>], selector: &ObjectSelector) -> Vec<Arc<Value>> {
    objects.iter().filter(|object| selector.matches(object)).cloned().collect()
}
