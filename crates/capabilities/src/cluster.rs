//! The objects of a cluster: kinds that policies name are followed, each once however many ask, and what is not followed is asked
//! of the API server, once however many ask at once.

mod budget;
mod direct;
mod followed;
mod resource;
mod store;
mod weight;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use kube::Client;
use serde_json::Value;

use crate::error::AskError;
use crate::kind::Kind;
use crate::kubernetes::selector::Wanted;
use budget::Budget;
use direct::Direct;

pub use budget::Limits;
pub(crate) use direct::Listed;
pub(crate) use followed::Followed;
pub(crate) use resource::Described;

/// A kind, in one namespace or all.
type Key = (Kind, Option<String>);

/// A cluster as policies may see it.
pub struct Cluster {
    client: Client,
    budget: Budget,
    followed: Mutex<HashMap<Key, Weak<Followed>>>,
    namespaces: OnceLock<Arc<Followed>>,
    direct: Direct,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster of this client, which must give up connections on which nothing arrives.
    #[must_use]
    pub fn new(client: Client, limits: Limits) -> Self {
        let budget = Budget::new(limits);
        Self {
            direct: Direct::new(client.clone(), budget.clone()),
            client,
            budget,
            followed: Mutex::default(),
            namespaces: OnceLock::new(),
        }
    }

    /// Follows a kind for as long as somebody holds what this returns; one namespace only, if one is given.
    pub(crate) fn follow(&self, kind: &Kind, namespace: Option<&str>) -> Arc<Followed> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind.clone(), namespace.map(ToOwned::to_owned));
        if let Some(followed) = followed.get(&key).and_then(Weak::upgrade) {
            return followed;
        }
        followed.retain(|_, followed| followed.strong_count() > 0);
        let (kind, namespace) = key.clone();
        let new = Arc::new(Followed::start(self.client.clone(), kind, namespace, &self.budget));
        followed.insert(key, Arc::downgrade(&new));
        new
    }

    /// Every policy may be told about the Namespace of its request: once one was, all are followed.
    pub(crate) fn namespaces(&self) -> Arc<Followed> {
        Arc::clone(self.namespaces.get_or_init(|| self.follow(&Kind::namespace(), None)))
    }

    /// Objects by a selector that only the API server understands.
    pub(crate) async fn select(
        &self,
        followed: &Followed,
        described: &Described,
        namespace: Option<&str>,
        fields: &str,
    ) -> Result<Arc<Listed>, AskError> {
        let own = followed.namespace();
        self.direct.list(described, own, namespace.or(own), fields).await
    }

    /// One object. One that is not known yet may have come just now: the API server is asked for it, as it is where a policy wants
    /// what is true now.
    pub(crate) async fn get(
        &self,
        followed: &Followed,
        described: &Described,
        namespace: Option<&str>,
        name: &str,
        is_fresh: bool,
    ) -> Result<Option<Arc<Value>>, AskError> {
        if is_fresh {
            return self.direct.get_now(described, namespace, name).await;
        }
        match followed.get(namespace, name)? {
            Some(object) => Ok(Some(object)),
            None => self.direct.get(described, namespace, name).await,
        }
    }

    /// Whether somebody may do something.
    pub(crate) async fn can_i(&self, review: SubjectAccessReviewSpec, is_fresh: bool) -> Result<Arc<Value>, AskError> {
        if is_fresh { self.direct.review_now(review).await } else { self.direct.review(review).await }
    }
}

/// Those of the objects that are wanted.
pub(crate) fn select(objects: &[Arc<Value>], wanted: &Wanted) -> Vec<Arc<Value>> {
    objects.iter().filter(|object| wanted.matches(object)).cloned().collect()
}
