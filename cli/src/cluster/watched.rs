//! The objects that a watch has reported. An interruption of the watch loses none of them. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;

use super::scope::Scope;
use crate::found::{Found, Omitted};
use crate::kinds::Pair;

/// An event of the watch of one kind; `true` for the namespaced kind, `false` for the cluster-scoped kind.
pub type WatchEvent = (bool, Event<DynamicObject>);

/// The objects that a watch has reported.
#[derive(Debug)]
pub struct Watched {
    /// The cluster-scoped kind, and the namespaced kind.
    kinds: [Kind; 2],
    /// The kinds that the user may not read.
    unseen: Vec<Omitted>,
}

#[derive(Debug, Default)]
struct Kind {
    is_watched: bool,
    objects: BTreeMap<Key, DynamicObject>,
    /// The objects of a list that is not complete yet.
    incomplete_list: Option<BTreeMap<Key, DynamicObject>>,
    /// True after the first complete list.
    is_listed: bool,
}

/// The namespace and the name of an object.
type Key = (Option<String>, String);

impl Watched {
    /// Returns the state of a new watch. The watch has the kinds of the scope, without those in `unseen`, which the user may
    /// not read.
    #[must_use]
    pub fn new<T: Pair>(scope: &Scope, unseen: &[Omitted]) -> Self {
        let [namespaced, cluster] = T::KINDS_PLURAL;
        let forbidden: Vec<_> = unseen.iter().filter(|it| it.what == namespaced || it.what == cluster).collect();
        let kind = |is_namespaced: bool, what: &str| {
            let is_asked_for = match scope {
                Scope::One(id) | Scope::SameNamespace(id) => id.namespace().is_some() == is_namespaced,
                Scope::All { .. } => true,
            };
            let is_watched = is_asked_for && forbidden.iter().all(|it| it.what != what);
            Kind { is_watched, ..Kind::default() }
        };
        Self { kinds: [kind(false, cluster), kind(true, namespaced)], unseen: forbidden.into_iter().cloned().collect() }
    }

    /// Returns true if the kind is watched.
    #[must_use]
    pub fn is_watched(&self, is_namespaced: bool) -> bool {
        self.kinds[usize::from(is_namespaced)].is_watched
    }

    /// Applies an event. Returns true if the objects are complete and can be shown.
    pub fn apply(&mut self, (is_namespaced, event): WatchEvent) -> bool {
        let kind = &mut self.kinds[usize::from(is_namespaced)];
        let key = |object: &DynamicObject| (object.namespace(), object.name_any());
        match event {
            Event::Init => kind.incomplete_list = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                kind.incomplete_list.get_or_insert_default().insert(key(&object), object);
            }
            Event::InitDone => {
                kind.objects = kind.incomplete_list.take().unwrap_or_default();
                kind.is_listed = true;
            }
            Event::Apply(object) => {
                kind.objects.insert(key(&object), object);
            }
            Event::Delete(object) => {
                kind.objects.remove(&key(&object));
            }
        }
        self.is_complete() && self.kinds.iter().all(|kind| kind.incomplete_list.is_none())
    }

    /// Returns true if every watched kind was listed once.
    fn is_complete(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_listed || !kind.is_watched)
    }

    /// Returns all objects, the cluster-scoped objects first.
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

    /// Returns the name and the generation of each object.
    fn objects(watched: &Watched) -> Vec<(String, i64)> {
        let found = watched.found::<ExperimentObject>();
        found.items.iter().map(|it| (it.id.name().to_owned(), it.generation)).collect()
    }

    #[test]
    fn a_list_is_shown_only_when_it_is_complete() {
        let mut watched = Watched::new::<ExperimentObject>(
            &Scope::SameNamespace(PolicyId::namespaced("team", "labels").unwrap()),
            &[],
        );
        assert!(!watched.apply((true, Event::Init)) && !watched.apply((true, Event::InitApply(object("a", 1)))));
        assert!(watched.apply((true, Event::InitDone)));
        assert!(watched.apply((true, Event::Apply(object("b", 1)))));
        assert_eq!(objects(&watched), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
        // The watch is interrupted and lists again; meanwhile `a` was deleted.
        watched.apply((true, Event::Init));
        watched.apply((true, Event::InitApply(object("b", 2))));
        assert_eq!(objects(&watched).len(), 2, "the old objects are kept until the list is complete");
        assert!(watched.apply((true, Event::InitDone)));
        assert_eq!(objects(&watched), [("b".to_owned(), 2)]);
        assert!(watched.apply((true, Event::Delete(object("b", 2)))) && objects(&watched).is_empty());
    }

    #[test]
    fn a_forbidden_kind_is_not_waited_for() {
        let scope = Scope::All { of_all_namespaces: true };
        let what = CLUSTER_EXPERIMENTS.to_owned();
        let unseen = [Omitted { what, reason: "Forbidden", message: String::new() }];
        for (unseen, is_complete) in [(&[][..], false), (&unseen[..], true)] {
            let mut watched = Watched::new::<ExperimentObject>(&scope, unseen);
            watched.apply((true, Event::Init));
            assert_eq!(watched.apply((true, Event::InitDone)), is_complete);
            assert_eq!(watched.found::<ExperimentObject>().unseen, unseen);
        }
    }
}
