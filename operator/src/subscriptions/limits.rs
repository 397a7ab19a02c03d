//! The limits of notifications and of writes in flight. A script or an admission webhook that hangs holds its place until its time limit,
//! so that the components of one namespace get only a part of the places.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::cache::lock;

/// The maximum number of notifications in flight.
const MAX_NOTIFICATIONS: usize = 64;
/// The maximum number of writes of records in flight, and of writes of stored policies. All components may have the same changed policy, and
/// the API server must have time for others, such as the rollouts of policies. An admission webhook that hangs for the one delays no write
/// of the other.
const MAX_WRITES: usize = 32;
/// The maximum number of each of them in flight for the components of one namespace.
const MAX_OF_NAMESPACE: usize = 8;

/// The places of one kind of call.
#[derive(Debug)]
pub(super) struct Limits {
    all: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A place of one call, which is free again when the value is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    _all: Option<OwnedSemaphorePermit>,
    _namespace: Option<OwnedSemaphorePermit>,
}

impl Limits {
    pub fn of_notifications() -> Self {
        Self::new(MAX_NOTIFICATIONS)
    }

    pub fn of_writes() -> Self {
        Self::new(MAX_WRITES)
    }

    fn new(places: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(places)), namespaces: Mutex::default() }
    }

    /// Waits for a place of this namespace. A place of all namespaces is taken last, so that no namespace waits with such a place.
    pub async fn acquire(&self, namespace: &str) -> Permit {
        let own = self.of_namespace(namespace);
        // The semaphores are never closed.
        let of_namespace = own.acquire_owned().await.ok();
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok();
        Permit { _all: of_all, _namespace: of_namespace }
    }

    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut namespaces = lock(&self.namespaces);
        if let Some(known) = namespaces.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        namespaces.retain(|_, semaphore| semaphore.strong_count() > 0);
        let created = Arc::new(Semaphore::new(MAX_OF_NAMESPACE));
        namespaces.insert(namespace.to_owned(), Arc::downgrade(&created));
        created
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::unconstrained;

    use super::*;

    #[tokio::test]
    async fn one_namespace_does_not_take_the_places_of_another_one() {
        let limits = Limits::of_notifications();
        let mut held = Vec::new();
        for _ in 0..MAX_OF_NAMESPACE {
            held.push(limits.acquire("hanging").await);
        }
        assert!(limits.acquire("hanging").now_or_never().is_none(), "the namespace has all its places");
        let other = limits.acquire("other").await;
        held.pop();
        held.push(limits.acquire("hanging").await);
        drop((held, other));
        // tokio lets a task take only so many permits before it must yield, also if they are free.
        let at_once = |namespace: &str| unconstrained(limits.acquire(namespace)).now_or_never();
        let namespaces = (0..9).map(|number| number.to_string());
        let rest: Vec<_> =
            namespaces.flat_map(|it| (0..MAX_OF_NAMESPACE).filter_map(|_| at_once(&it)).collect::<Vec<_>>()).collect();
        assert_eq!(rest.len(), MAX_NOTIFICATIONS);
        drop(rest);
        assert!(at_once("last").is_some());
        assert!(lock(&limits.namespaces).len() <= 10, "namespaces without calls are forgotten");
    }
}
