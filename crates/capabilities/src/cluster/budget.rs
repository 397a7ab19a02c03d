//! The memory budget of the objects that are read from a cluster, in total and for each namespace. A reservation beyond a limit
//! fails before the object is stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{KindUnavailable, LimitScope};

/// The maximum number of concurrent lists. Each list has a page in memory before its size is known.
const MAX_CONCURRENT_LISTS: usize = 4;

/// The memory limits of the objects that are read from a cluster, in bytes. Objects beyond a limit are not stored, and reading
/// their kind is an error. A large cluster must not exhaust the memory of the policy server, and one namespace must leave memory
/// to the policies of other namespaces.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The limit of one kind; for namespaced policies, of one kind in one namespace.
    pub kind: usize,
    /// The limit of the objects that the policies of one namespace read.
    pub namespace: usize,
    /// The limit of the objects that all namespaced policies read together.
    pub namespaces: usize,
    /// The limit of all objects.
    pub total: usize,
}

impl Limits {
    /// Derives the limits from `total`: half for one kind, half for all namespaced policies, an eighth for one namespace.
    #[must_use]
    pub fn of(total: usize) -> Self {
        Self { kind: total / 2, namespace: total / 8, namespaces: total / 2, total }
    }
}

/// The limits and the current usage.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    limits: Limits,
    usage: Arc<Mutex<Usage>>,
    list_permits: Arc<Semaphore>,
}

/// The memory in use, in bytes.
#[derive(Debug, Default)]
struct Usage {
    total: usize,
    /// The part for all namespaced policies.
    namespaced: usize,
    /// The part for the policies of each namespace.
    by_namespace: HashMap<String, usize>,
}

/// The memory of one kind or one list. Dropping the reservation releases the memory.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Budget,
    /// The namespace of the policies that read the objects; `None` for policies of the kind `ClusterPolicy`.
    namespace: Option<String>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, usage: Arc::default(), list_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_LISTS)) }
    }

    /// Returns an empty reservation for the policies of a namespace, or with `None` for policies of the kind `ClusterPolicy`.
    pub(super) fn reservation(&self, namespace: Option<&str>) -> Reservation {
        Reservation { budget: self.clone(), namespace: namespace.map(ToOwned::to_owned), bytes: 0 }
    }

    /// Waits for a permit to start a list.
    pub(super) async fn list_permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed, so this is never `None`.
        Arc::clone(&self.list_permits).acquire_owned().await.ok()
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.usage().total
    }
}

impl Reservation {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more memory. Changes nothing if that exceeds a limit.
    ///
    /// # Errors
    /// Returns [`KindUnavailable::TooLarge`] with the limit that would be exceeded.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), KindUnavailable> {
        let Limits { kind, namespace, namespaces, total } = self.budget.limits;
        let mut usage = self.budget.usage();
        check(LimitScope::Kind, self.bytes + bytes, kind)?;
        if let Some(own) = &self.namespace {
            let before = usage.by_namespace.get(own).copied().unwrap_or_default();
            check(LimitScope::Namespace(own.clone()), before + bytes, namespace)?;
            check(LimitScope::Namespaces, usage.namespaced + bytes, namespaces)?;
        }
        check(LimitScope::All, usage.total + bytes, total)?;
        usage.total += bytes;
        if let Some(own) = &self.namespace {
            usage.namespaced += bytes;
            *usage.by_namespace.entry(own.clone()).or_default() += bytes;
        }
        drop(usage);
        self.bytes += bytes;
        Ok(())
    }

    /// Releases a part of the memory.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut usage = self.budget.usage();
        usage.total -= bytes;
        let Some(own) = &self.namespace else { return };
        usage.namespaced -= bytes;
        if let Some(of_namespace) = usage.by_namespace.get_mut(own) {
            *of_namespace -= bytes;
            if *of_namespace == 0 {
                usage.by_namespace.remove(own);
            }
        }
    }

    /// Changes the reservation of an object from `before` to `after` bytes.
    ///
    /// # Errors
    /// Returns [`KindUnavailable::TooLarge`] if the object grows beyond a limit.
    pub(super) fn replace(&mut self, before: usize, after: usize) -> Result<(), KindUnavailable> {
        if after > before {
            return self.grow(after - before);
        }
        self.shrink(before - after);
        Ok(())
    }

    /// Releases all of the memory.
    pub(super) fn clear(&mut self) {
        self.shrink(self.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.clear();
    }
}

fn check(scope: LimitScope, bytes: usize, limit: usize) -> Result<(), KindUnavailable> {
    if bytes > limit { Err(KindUnavailable::TooLarge { scope, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn too_large(scope: LimitScope, limit: usize) -> Result<(), KindUnavailable> {
        Err(KindUnavailable::TooLarge { scope, limit })
    }

    #[test]
    fn policies_of_one_namespace_cannot_use_the_memory_of_others() {
        let budget = Budget::new(Limits { kind: 60, namespace: 20, namespaces: 50, total: 100 });
        let mut greedy = [budget.reservation(Some("a")), budget.reservation(Some("a"))];
        assert_eq!(greedy[0].grow(15), Ok(()));
        assert_eq!(
            greedy[1].grow(6),
            too_large(LimitScope::Namespace("a".to_owned()), 20),
            "two kinds of one namespace"
        );
        assert_eq!(greedy[1].grow(5), Ok(()));
        let mut others = [budget.reservation(Some("b")), budget.reservation(Some("c"))];
        assert_eq!(others[0].grow(20), Ok(()), "each namespace has the same limit");
        assert_eq!(others[1].grow(11), too_large(LimitScope::Namespaces, 50));
        let mut all = [budget.reservation(None), budget.reservation(None)];
        assert_eq!(all[0].grow(61), too_large(LimitScope::Kind, 60));
        assert_eq!(all[0].grow(50), Ok(()), "namespaced policies use at most half of the total");
        assert_eq!(all[1].grow(11), too_large(LimitScope::All, 100));
        assert_eq!(budget.used(), 90, "a refused reservation takes no memory");
        drop(greedy);
        assert_eq!(others[1].grow(20), Ok(()), "released memory is available to others");
        assert_eq!(all[1].grow(10), Ok(()));
        drop((others, all));
        assert_eq!((budget.used(), budget.usage().by_namespace.len()), (0, 0));
    }

    #[test]
    fn a_reservation_follows_the_size_of_its_object() {
        let budget = Budget::new(Limits::of(100));
        let mut reservation = budget.reservation(None);
        assert_eq!((reservation.replace(0, 30), budget.used()), (Ok(()), 30));
        assert_eq!((reservation.replace(30, 10), budget.used()), (Ok(()), 10));
        assert_eq!((reservation.replace(10, 51), budget.used()), (too_large(LimitScope::Kind, 50), 10));
        reservation.clear();
        assert_eq!(budget.used(), 0);
    }
}
