//! Decides whether a replica is Ready, from the Ready pods of its policy server and the live revisions that each of them serves. Pure
//! functions.
//!
//! A Service sends requests only to Ready pods, so a pod that lacks a live revision leaves the endpoints while another pod serves the
//! revision. The pods must not wait for each other, or no endpoint would be left: a pod leaves only in favour of a pod that lacks
//! fewer live revisions or, with the same number, has the smaller name. Such pods are in a total order, so the first of them stays.

use std::collections::BTreeSet;

use super::pod::PodId;

/// An enabled revision that decides requests.
#[derive(Debug)]
pub(super) struct LiveRevision<'a> {
    pub name: &'a str,
    /// The pods that report that they serve the revision, Ready or not.
    pub served_by: &'a BTreeSet<PodId>,
    /// True if this replica has loaded the revision. False also while it is loading the revision.
    pub is_loaded: bool,
}

/// A live revision that this replica lacks, and a Ready pod that serves it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unserved<'a> {
    pub revision: &'a str,
    pub pod: &'a PodId,
}

/// Returns the reason why this replica must not be Ready; `None` if it may be. `ready` are the pods of the policy server that are
/// Ready now.
pub(super) fn unserved<'a>(this: &PodId, ready: &'a [PodId], live: &[LiveRevision<'a>]) -> Option<Unserved<'a>> {
    let missing = live.iter().filter(|revision| !revision.is_loaded).count();
    if missing == 0 {
        return None;
    }
    ready.iter().filter(|pod| pod.uid != this.uid).find_map(|pod| {
        let missing_there = live.iter().filter(|revision| !revision.served_by.contains(pod)).count();
        if (missing_there, &pod.name) >= (missing, &this.name) {
            return None;
        }
        let revision = live.iter().find(|revision| !revision.is_loaded && revision.served_by.contains(pod))?;
        Some(Unserved { revision: revision.name, pod })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(name: &str) -> PodId {
        PodId { name: name.to_owned(), uid: format!("uid-{name}") }
    }

    fn pods(names: &str) -> Vec<PodId> {
        names.split_whitespace().map(pod).collect()
    }

    /// Returns the reason why the pod `p` is not Ready. Each live revision is written as its name and the pods that serve it.
    fn decide(ready: &str, live: &[(&str, &str)]) -> Option<(String, String)> {
        let (this, ready) = (pod("p"), pods(ready));
        let served_by: Vec<BTreeSet<PodId>> = live.iter().map(|(_, names)| pods(names).into_iter().collect()).collect();
        let live: Vec<_> = live
            .iter()
            .zip(&served_by)
            .map(|((name, _), served_by)| LiveRevision { name, served_by, is_loaded: served_by.contains(&this) })
            .collect();
        unserved(&this, &ready, &live).map(|it| (it.revision.to_owned(), it.pod.name.clone()))
    }

    #[test]
    fn a_pod_is_not_ready_while_another_ready_pod_serves_a_live_revision_that_it_lacks() {
        for (ready, live, wanted) in [
            // No revision is live, or this pod serves all of them.
            ("p q", &[("a", "p q")][..], None),
            ("p q", &[("a", "p")], None),
            ("p q", &[], None),
            // Another pod serves the revision.
            ("p q", &[("a", "q")], Some(("a", "q"))),
            ("q", &[("a", "q")], Some(("a", "q"))),
            ("p q z", &[("a", "p q z"), ("b", "z")], Some(("b", "z"))),
            // The other pod does not serve the revision either, is not Ready, or does not exist any more.
            ("p q", &[("a", "")], None),
            ("p", &[("a", "q")], None),
            ("p z", &[("a", "q")], None),
            // Mutual misses: the pod with fewer misses stays, then the pod with the smaller name.
            ("p q", &[("a", "p"), ("b", "q")], None),
            ("o p", &[("a", "p"), ("b", "o")], Some(("b", "o"))),
            ("p q", &[("a", "p"), ("b", "q"), ("c", "q")], Some(("b", "q"))),
            ("o p", &[("a", "p"), ("b", "p"), ("c", "o")], None),
            // A pod that serves every revision is preferred to any other.
            ("p q r", &[("a", "p r"), ("b", "q r")], Some(("b", "r"))),
        ] {
            let wanted = wanted.map(|(revision, pod)| (revision.to_owned(), pod.to_owned()));
            assert_eq!(decide(ready, live), wanted, "{ready}: {live:?}");
        }
    }

    #[test]
    fn the_report_of_an_earlier_pod_of_the_same_name_does_not_count() {
        let this = pod("p");
        let (old, new) = (PodId { uid: "old".to_owned(), ..pod("a") }, pod("a"));
        let served_by = BTreeSet::from([old]);
        let live = [LiveRevision { name: "r", served_by: &served_by, is_loaded: false }];
        assert_eq!(unserved(&this, &[this.clone(), new], &live), None);
        // The item of an earlier process in this pod does not make this pod wait for itself.
        let served_by = BTreeSet::from([this.clone()]);
        let live = [LiveRevision { name: "r", served_by: &served_by, is_loaded: false }];
        assert_eq!(unserved(&this, std::slice::from_ref(&this), &live), None);
    }

    /// Pods, the live revisions that each of them serves, and the pods that are Ready now.
    struct Replicas {
        pods: Vec<PodId>,
        served_by: Vec<BTreeSet<PodId>>,
        ready: Vec<bool>,
    }

    impl Replicas {
        /// `loaded` has a list for each pod: for each live revision, whether the pod serves it.
        fn new(loaded: &[Vec<bool>], ready: &[bool]) -> Self {
            let pods: Vec<PodId> = (0..loaded.len()).map(|number| pod(&number.to_string())).collect();
            let serving = |revision: usize| {
                let serving = pods.iter().zip(loaded).filter(|(_, loaded)| loaded[revision]);
                serving.map(|(pod, _)| pod.clone()).collect()
            };
            let served_by = (0..loaded[0].len()).map(serving).collect();
            Self { pods, served_by, ready: ready[..loaded.len()].to_vec() }
        }

        fn is_ready(&self, number: usize) -> bool {
            let this = &self.pods[number];
            let ready = self.pods.iter().zip(&self.ready).filter(|(_, ready)| **ready);
            let ready: Vec<PodId> = ready.map(|(pod, _)| pod.clone()).collect();
            let live = self.served_by.iter().map(|served_by| LiveRevision {
                name: "r",
                served_by,
                is_loaded: served_by.contains(this),
            });
            unserved(this, &ready, &live.collect::<Vec<_>>()).is_none()
        }

        fn serves_all(&self, number: usize) -> bool {
            self.served_by.iter().all(|served_by| served_by.contains(&self.pods[number]))
        }
    }

    proptest! {
        #[test]
        fn readiness_settles_and_leaves_an_endpoint(
            loaded in (0_usize..5).prop_flat_map(|revisions| {
                proptest::collection::vec(proptest::collection::vec(any::<bool>(), revisions), 1..6)
            }),
            ready in proptest::collection::vec(any::<bool>(), 6),
            order in proptest::collection::vec(0_usize..6, 0..40),
        ) {
            let mut replicas = Replicas::new(&loaded, &ready);
            let count = replicas.pods.len();
            // The pods decide at different times, some of them several times.
            for number in order.into_iter().filter(|number| *number < count) {
                replicas.ready[number] = replicas.is_ready(number);
            }
            // Then each pod decides once in a round. Each round settles at least one more pod, in the order of the pods.
            for _ in 0..count {
                for number in (0..count).rev() {
                    replicas.ready[number] = replicas.is_ready(number);
                }
            }
            for number in 0..count {
                prop_assert!(replicas.ready[number] == replicas.is_ready(number), "pod {number} oscillates");
            }
            prop_assert!(replicas.ready.contains(&true), "no endpoint is left");
            if (0..count).any(|number| replicas.serves_all(number)) {
                for number in 0..count {
                    prop_assert!(replicas.ready[number] == replicas.serves_all(number), "pod {number}");
                }
            }
        }
    }
}
