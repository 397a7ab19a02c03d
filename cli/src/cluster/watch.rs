//! What a watch shows of one or both kinds, also after it was interrupted.

use std::collections::BTreeMap;
use std::pin::Pin;

use futures_util::stream::{self, Stream, StreamExt as _};
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use proviso_core::PolicyId;

use super::{Cluster, Found, Pair};
use crate::error::Error;
use crate::report::Unseen;

/// How long one watch lasts, in seconds; another follows where it ended. Less than [`super::connect`] lets a cluster be
/// silent, so that a quiet watch is told from a connection that leads nowhere.
const LASTS: u32 = 20;

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    One(PolicyId),
    /// All in the namespace of this one, or all of the cluster.
    Beside(PolicyId),
    /// Both kinds.
    All {
        of_all_namespaces: bool,
    },
}

/// Something that changed, of the kind with or without a namespace.
type News = (bool, Event<DynamicObject>);
type Changes = Pin<Box<dyn Stream<Item = Result<News, Error>> + Send>>;

impl Cluster {
    /// Changes of what is in a scope, beginning with all that is there, of the kinds that are watched. Goes on after
    /// errors, more and more slowly.
    pub fn watch<T: Pair + 'static>(
        &self,
        scope: &Scope,
        watched: &Watched,
    ) -> impl Stream<Item = Result<News, Error>> + Send + use<T> {
        let (namespace, name) = match scope {
            Scope::One(id) => (id.namespace(), Some(id.name())),
            Scope::Beside(id) => (id.namespace(), None),
            Scope::All { of_all_namespaces } => ((!of_all_namespaces).then_some(self.namespace.as_str()), None),
        };
        let changes = |is_namespaced: bool| -> Changes {
            if !watched.kinds[usize::from(is_namespaced)].is_watched {
                return Box::pin(stream::pending());
            }
            self.changes::<T>(is_namespaced, namespace, name)
        };
        stream::select(changes(false), changes(true))
    }

    fn changes<T: Pair + 'static>(&self, is_namespaced: bool, namespace: Option<&str>, name: Option<&str>) -> Changes {
        let access = T::access_to_many("watch", is_namespaced, namespace);
        let mut config = watcher::Config::default().timeout(LASTS);
        if let Some(name) = name {
            config = config.fields(&format!("metadata.name={name}"));
        }
        let api = self.api::<T>(is_namespaced, namespace);
        let cluster = self.clone();
        let changes = watcher(api, config).default_backoff().map(move |event| match event {
            Ok(event) => Ok((is_namespaced, event)),
            Err(error) => Err(cluster.watch_error(error, access.clone())),
        });
        Box::pin(changes)
    }

    fn watch_error(&self, error: watcher::Error, access: crate::error::Access) -> Error {
        use watcher::Error as Watch;
        match error {
            Watch::InitialListFailed(error) | Watch::WatchStartFailed(error) | Watch::WatchFailed(error) => {
                self.error(error, access)
            }
            Watch::WatchError(status) => self.error(kube::Error::Api(status), access),
            error @ Watch::NoResourceVersion => Error::Refused { access, cause: error.to_string() },
        }
    }
}

/// What there is, as far as a watch has told.
#[derive(Debug)]
pub struct Watched {
    /// Of the kind without a namespace, and of the one with.
    kinds: [Kind; 2],
    unseen: Vec<Unseen>,
}

#[derive(Debug, Default)]
struct Kind {
    is_watched: bool,
    objects: BTreeMap<Key, DynamicObject>,
    /// What a list that is under way has told so far.
    coming: Option<BTreeMap<Key, DynamicObject>>,
    is_known: bool,
}

/// Namespace and name.
type Key = (Option<String>, String);

impl Watched {
    /// `unseen`: what may not be seen is not watched.
    #[must_use]
    pub fn new<T: Pair>(scope: &Scope, unseen: &[Unseen]) -> Self {
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

    /// Takes a change in. Whether there is something to show.
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

    /// Whether all that is watched was told once.
    fn is_complete(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_known || !kind.is_watched)
    }

    /// What there is: first what has no namespace.
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
    use crate::objects::ExperimentObject;
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
    fn a_list_is_shown_when_it_is_whole() {
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
    fn a_kind_that_may_not_be_seen_is_not_waited_for() {
        let scope = Scope::All { of_all_namespaces: true };
        let what = crate::report::CLUSTER_EXPERIMENTS.to_owned();
        let unseen = [Unseen { what, reason: "Forbidden", message: String::new() }];
        for (unseen, is_complete) in [(&[][..], false), (&unseen[..], true)] {
            let mut watched = Watched::new::<ExperimentObject>(&scope, unseen);
            watched.take((true, Event::Init));
            assert_eq!(watched.take((true, Event::InitDone)), is_complete);
            assert_eq!(watched.found::<ExperimentObject>().unseen, unseen);
        }
    }
}
