//! The memory that all objects take together which are read from a cluster, and whose it is. What is asked for beyond the limits
//! is refused before it is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Trouble, Whose};

/// Kinds that are listed at the same time: of each a page is in memory before it is known how large it is.
const LISTINGS: usize = 4;

/// The limits of the memory that objects of a cluster take, in bytes. Objects beyond a limit are not kept, and reading them is an
/// error: a large cluster must not exhaust the memory of the policy server, and one namespace must leave memory to the policies
/// of the others.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The objects of one kind; for a policy of a namespace, those of one kind in this namespace.
    pub kind: usize,
    /// The objects that the policies of one namespace read.
    pub namespace: usize,
    /// The objects that the policies of all namespaces read together.
    pub namespaces: usize,
    /// All objects.
    pub total: usize,
}

impl Limits {
    /// Derives the limits from `total`: half of it for one kind, half for the policies of all namespaces, an eighth for those of
    /// one namespace.
    #[must_use]
    pub fn of(total: usize) -> Self {
        Self { kind: total / 2, namespace: total / 8, namespaces: total / 2, total }
    }
}

/// What may be taken, and what is.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    limits: Limits,
    taken: Arc<Mutex<Taken>>,
    listings: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// For policies of namespaces.
    namespaced: usize,
    /// For those of each.
    namespaces: HashMap<String, usize>,
}

/// What one kind or one list takes. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    /// Of the policies that it is for.
    namespace: Option<String>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, taken: Arc::default(), listings: Arc::new(Semaphore::new(LISTINGS)) }
    }

    /// A share of nothing yet, for policies of this namespace or for those that see all.
    pub(super) fn share(&self, namespace: Option<&str>) -> Share {
        Share { budget: self.clone(), namespace: namespace.map(ToOwned::to_owned), bytes: 0 }
    }

    /// Waits until there is a place for one more kind to be listed.
    pub(super) async fn listing(&self) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        Arc::clone(&self.listings).acquire_owned().await.ok()
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> usize {
        self.taken().all
    }
}

impl Share {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more, or nothing if that is too much.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Trouble> {
        let Limits { kind, namespace, namespaces, total } = self.budget.limits;
        let mut taken = self.budget.taken();
        check(Whose::Kind, self.bytes + bytes, kind)?;
        if let Some(own) = &self.namespace {
            let before = taken.namespaces.get(own).copied().unwrap_or_default();
            check(Whose::Namespace(own.clone()), before + bytes, namespace)?;
            check(Whose::Namespaces, taken.namespaced + bytes, namespaces)?;
        }
        check(Whose::All, taken.all + bytes, total)?;
        taken.all += bytes;
        if let Some(own) = &self.namespace {
            taken.namespaced += bytes;
            *taken.namespaces.entry(own.clone()).or_default() += bytes;
        }
        drop(taken);
        self.bytes += bytes;
        Ok(())
    }

    /// Gives some of it back.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut taken = self.budget.taken();
        taken.all -= bytes;
        let Some(own) = &self.namespace else { return };
        taken.namespaced -= bytes;
        if let Some(of_own) = taken.namespaces.get_mut(own) {
            *of_own -= bytes;
            if *of_own == 0 {
                taken.namespaces.remove(own);
            }
        }
    }

    /// So many bytes are now so many.
    pub(super) fn replace(&mut self, before: usize, after: usize) -> Result<(), Trouble> {
        if after > before {
            return self.grow(after - before);
        }
        self.shrink(before - after);
        Ok(())
    }

    /// Gives all of it back.
    pub(super) fn clear(&mut self) {
        self.shrink(self.bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

fn check(whose: Whose, bytes: usize, limit: usize) -> Result<(), Trouble> {
    if bytes > limit { Err(Trouble::TooLarge { whose, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn too_large(whose: Whose, limit: usize) -> Result<(), Trouble> {
        Err(Trouble::TooLarge { whose, limit })
    }

    #[test]
    fn a_namespace_leaves_to_others_what_is_theirs() {
        let budget = Budget::new(Limits { kind: 60, namespace: 20, namespaces: 50, total: 100 });
        let mut greedy = [budget.share(Some("a")), budget.share(Some("a"))];
        assert_eq!(greedy[0].grow(15), Ok(()));
        assert_eq!(greedy[1].grow(6), too_large(Whose::Namespace("a".to_owned()), 20), "two kinds of one namespace");
        assert_eq!(greedy[1].grow(5), Ok(()));
        let mut others = [budget.share(Some("b")), budget.share(Some("c"))];
        assert_eq!(others[0].grow(20), Ok(()), "the next one has as much");
        assert_eq!(others[1].grow(11), too_large(Whose::Namespaces, 50));
        let mut all = [budget.share(None), budget.share(None)];
        assert_eq!(all[0].grow(61), too_large(Whose::Kind, 60));
        assert_eq!(all[0].grow(50), Ok(()), "namespaces have left half of it");
        assert_eq!(all[1].grow(11), too_large(Whose::All, 100));
        assert_eq!(budget.all(), 90, "what is refused is not taken");
        drop(greedy);
        assert_eq!(others[1].grow(20), Ok(()), "what is given back is there for others");
        assert_eq!(all[1].grow(10), Ok(()));
        drop((others, all));
        assert_eq!((budget.all(), budget.taken().namespaces.len()), (0, 0));
    }

    #[test]
    fn what_becomes_larger_or_smaller_is_counted_as_it_is() {
        let budget = Budget::new(Limits::of(100));
        let mut share = budget.share(None);
        assert_eq!((share.replace(0, 30), budget.all()), (Ok(()), 30));
        assert_eq!((share.replace(30, 10), budget.all()), (Ok(()), 10));
        assert_eq!((share.replace(10, 51), budget.all()), (too_large(Whose::Kind, 50), 10));
        share.clear();
        assert_eq!(budget.all(), 0);
    }
}
