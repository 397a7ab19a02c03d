//! The objects that a watch has reported, also after it was interrupted. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;

use super::scope::Scope;
use crate::found::{Found, Omitted};
use crate::kinds::Pair;

/// A change of the kind that is namespaced (`true`) or cluster-scoped.
pub type News = (bool, Event<DynamicObject>);

/// The objects that a watch has reported.
#[derive(Debug)]
pub struct Watched {
    /// The cluster-scoped kind, and the namespaced kind.
    kinds: [Kind; 2],
    unseen: Vec<Omitted>,
}

#[derive(Debug, Default)]
struct Kind {
    is_watched: bool,
    objects: BTreeMap<Key, DynamicObject>,
    /// The objects of a list that is not complete yet.
    coming: Option<BTreeMap<Key, DynamicObject>>,
    is_known: bool,
}

/// Namespace and name.
type Key = (Option<String>, String);

impl Watched {
    /// A watch of the kinds of a scope, except those in `unseen`, which the user may not read.
    #[must_use]
    pub fn new<T: Pair>(scope: &Scope, unseen: &[Omitted]) -> Self {
        let [namespaced, cluster] = T::KINDS_PLURAL;
        let forbidden: Vec<_> = unseen.iter().filter(|it| it.what == namespaced || it.what == cluster).collect();
        let kind = |is_namespaced: bool, what: &str| {
            let is_asked_for = match scope {
                Scope::One(id) | Scope::Beside(id) => id.namespace().is_some() == is_namespaced,
                Scope::All { .. } => true,
            };
            let is_watched = is_asked_for && forbidden.iter().all(|it| it.what != what);
            Kind { is_watched, ..Kind::default() }
        };
        Self { kinds: [kind(false, cluster), kind(true, namespaced)], unseen: forbidden.into_iter().cloned().collect() }
    }

    /// Returns whether the kind is watched.
    #[must_use]
    pub fn is_watched(&self, is_namespaced: bool) -> bool {
        self.kinds[usize::from(is_namespaced)].is_watched
    }

    /// Takes a change in. Returns whether there is something to show.
    pub fn take(&mut self, (is_namespaced, event): News) -> bool {
        let kind = &mut self.kinds[usize::from(is_namespaced)];
        let key = |object: &DynamicObject| (object.namespace(), object.name_any());
        match event {
            Event::Init => kind.coming = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                kind.coming.get_or_insert_default().insert(key(&object), object);
            }
            Event::InitDone => {
                kind.objects = kind.coming.take().unwrap_or_default();
                kind.is_known = true;
            }
            Event::Apply(object) => {
                kind.objects.insert(key(&object), object);
            }
            Event::Delete(object) => {
                kind.objects.remove(&key(&object));
            }
        }
        self.is_complete() && self.kinds.iter().all(|kind| kind.coming.is_none())
    }

    /// Returns whether every watched kind was listed once.
    fn is_complete(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_known || !kind.is_watched)
    }

    /// Returns all objects, the cluster-scoped first.
    #[must_use]
    pub fn found<T: Pair>(&self) -> Found<T> {
        let mut found = Found { items: Vec::new(), unseen: self.unseen.clone() };
        for kind in &self.kinds {
            found.read(kind.objects.values(), T::read);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::CLUSTER_EXPERIMENTS;
    use crate::objects::ExperimentObject;
    use proviso_core::PolicyId;
    use serde_json::json;

    fn object(name: &str, generation: i64) -> DynamicObject {
        let object = json!({
            "metadata": {"name": name, "namespace": "team", "generation": generation},
            "spec": {"policyRef": {"name": "labels"}},
        });
        serde_json::from_value(object).unwrap()
    }

    fn seen(watched: &Watched) -> Vec<(String, i64)> {
        let found = watched.found::<ExperimentObject>();
        found.items.iter().map(|it| (it.id.name().to_owned(), it.generation)).collect()
    }

    #[test]
    fn a_list_is_shown_when_it_is_complete() {
        let mut watched =
            Watched::new::<ExperimentObject>(&Scope::Beside(PolicyId::namespaced("team", "labels").unwrap()), &[]);
        assert!(!watched.take((true, Event::Init)) && !watched.take((true, Event::InitApply(object("a", 1)))));
        assert!(watched.take((true, Event::InitDone)));
        assert!(watched.take((true, Event::Apply(object("b", 1)))));
        assert_eq!(seen(&watched), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
        // After an interruption: what is missing from the list was deleted meanwhile.
        watched.take((true, Event::Init));
        watched.take((true, Event::InitApply(object("b", 2))));
        assert_eq!(seen(&watched).len(), 2, "until the list is whole, what was there stays");
        assert!(watched.take((true, Event::InitDone)));
        assert_eq!(seen(&watched), [("b".to_owned(), 2)]);
        assert!(watched.take((true, Event::Delete(object("b", 2)))) && seen(&watched).is_empty());
    }

    #[test]
    fn a_forbidden_kind_is_not_waited_for() {
        let scope = Scope::All { of_all_namespaces: true };
        let what = CLUSTER_EXPERIMENTS.to_owned();
        let unseen = [Omitted { what, reason: "Forbidden", message: String::new() }];
        for (unseen, is_complete) in [(&[][..], false), (&unseen[..], true)] {
            let mut watched = Watched::new::<ExperimentObject>(&scope, unseen);
            watched.take((true, Event::Init));
            assert_eq!(watched.take((true, Event::InitDone)), is_complete);
            assert_eq!(watched.found::<ExperimentObject>().unseen, unseen);
        }
    }
}
