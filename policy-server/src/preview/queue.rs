//! The room of the preview queue: a number of requests, and the memory of their reviews. Policies and namespaces share it.

use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_shares::{Account, Limits, Permit, Rank, Shares};

use super::evaluation::Evaluation;
use super::{Job, RequestJob};

/// The maximum memory of queued reviews, in KiB: 64 MiB.
const QUEUE_KIB: u64 = 64 * 1024;

/// A request to preview.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// A request to the Kubernetes API.
    Review(Arc<Job>),
    /// A request to a service.
    Request(Arc<RequestJob>),
}

/// A request in the queue, and its evaluations for the experiments of one policy.
#[derive(Debug)]
pub(super) struct Queued {
    pub work: Work,
    pub evaluations: Vec<Evaluation>,
    pub place: Place,
}

/// A place in the queue, with the memory of its review. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    _request: Permit,
    _memory: Permit,
}

/// The room of the queue.
#[derive(Clone, Debug)]
pub(super) struct Room {
    requests: Shares,
    /// The memory in KiB.
    memory: Shares,
}

impl Room {
    /// Makes room for this number of requests.
    pub(super) fn new(capacity: usize) -> Self {
        Self::with_memory(capacity, QUEUE_KIB)
    }

    pub(super) fn with_memory(capacity: usize, kib: u64) -> Self {
        let capacity = u64::try_from(capacity).unwrap_or(u64::MAX);
        Self { requests: Shares::new(Limits::of(capacity)), memory: Shares::new(Limits::of(kib)) }
    }

    /// Takes a place for a review of this size in bytes; `None` if the policy or its namespace uses its share, or if the queue is
    /// full.
    pub(super) fn take(&self, policy: &PolicyId, size: usize) -> Option<Place> {
        let kib = u64::try_from(size / 1024 + 1).unwrap_or(u64::MAX);
        let memory = account(&self.memory, policy).try_take(kib).ok()?;
        let request = account(&self.requests, policy).try_take(1).ok()?;
        Some(Place { _request: request, _memory: memory })
    }
}

pub(super) fn account(shares: &Shares, policy: &PolicyId) -> Account {
    shares.account(policy.as_str(), policy.namespace(), Rank::Background)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn policy(namespace: &str, name: &str) -> PolicyId {
        PolicyId::namespaced(namespace, name).unwrap()
    }

    #[test]
    fn one_policy_or_namespace_cannot_fill_the_queue() {
        let room = Room::new(16);
        let fill = |policy: &PolicyId| std::iter::from_fn(|| room.take(policy, KIB)).collect::<Vec<_>>();
        let first = fill(&policy("a", "one"));
        let (second, third) = (fill(&policy("a", "two")), fill(&policy("a", "three")));
        assert_eq!((first.len(), second.len(), third.len()), (4, 4, 0));
        assert_eq!(fill(&policy("b", "one")).len(), 4);
        let cluster = fill(&PolicyId::cluster("c").unwrap());
        assert_eq!(cluster.len(), 4);
        drop(first);
        assert_eq!(fill(&policy("a", "three")).len(), 4, "the room of the first policy is free again");
    }

    #[test]
    fn large_reviews_of_one_policy_leave_memory_for_the_others() {
        let room = Room::with_memory(1000, 1024);
        let large = |policy: &PolicyId| room.take(policy, 100 * KIB);
        let greedy: Vec<_> = std::iter::from_fn(|| large(&policy("a", "one"))).collect();
        assert_eq!(greedy.len(), 2);
        assert!(large(&policy("b", "one")).is_some());
    }
}
