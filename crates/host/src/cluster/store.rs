//! The objects of one kind that are kept, within bounds of memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::Limits;
use super::weight::weight;
use crate::error::Trouble;

/// The memory that the objects of all kinds take together.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    pub limits: Limits,
    pub taken: Arc<AtomicUsize>,
}

/// By namespace, empty where there is none, and name.
type Key = (String, String);

#[derive(Debug)]
struct Kept {
    object: Arc<Value>,
    weight: usize,
}

#[derive(Debug)]
pub(super) struct Store {
    budget: Budget,
    objects: Objects,
    /// What a listing under way has brought so far.
    fresh: Objects,
    /// Grows with each change.
    version: u64,
    /// All objects of this version, if somebody asked.
    list: Option<Arc<Vec<Arc<Value>>>>,
}

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<Key, Kept>,
    weight: usize,
}

impl Objects {
    fn insert(&mut self, key: Key, kept: Kept) {
        self.weight += kept.weight;
        if let Some(old) = self.by_key.insert(key, kept) {
            self.weight -= old.weight;
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(old) = self.by_key.remove(key) {
            self.weight -= old.weight;
        }
    }
}

impl Store {
    pub(super) fn new(budget: Budget) -> Self {
        Self { budget, objects: Objects::default(), fresh: Objects::default(), version: 0, list: None }
    }

    /// A listing begins: what is there stays until it has ended.
    pub(super) fn begin(&mut self) {
        self.fresh = Objects::default();
    }

    /// A listing brings an object.
    pub(super) fn add(&mut self, object: Value) -> Result<(), Trouble> {
        let key = key(&object);
        // What has not changed is not kept twice.
        let same = self.objects.by_key.get(&key).filter(|kept| version(&kept.object) == version(&object));
        let kept = match same {
            Some(kept) => Kept { object: Arc::clone(&kept.object), weight: kept.weight },
            None => Kept { weight: weight(&object), object: Arc::new(object) },
        };
        self.fresh.insert(key, kept);
        self.check(self.fresh.weight)
    }

    /// A listing has ended.
    pub(super) fn end(&mut self) -> Result<(), Trouble> {
        let fresh = std::mem::take(&mut self.fresh);
        self.account(fresh.weight);
        self.objects = fresh;
        self.changed();
        self.check_total()
    }

    pub(super) fn apply(&mut self, object: Value) -> Result<(), Trouble> {
        let kept = Kept { weight: weight(&object), object: Arc::new(object) };
        let mut objects = std::mem::take(&mut self.objects);
        let before = objects.weight;
        objects.insert(key(&kept.object), kept);
        self.objects = objects;
        self.reaccount(before);
        self.changed();
        self.check(self.objects.weight)?;
        self.check_total()
    }

    pub(super) fn remove(&mut self, object: &Value) {
        let before = self.objects.weight;
        self.objects.remove(&key(object));
        self.reaccount(before);
        self.changed();
    }

    pub(super) fn clear(&mut self) {
        self.account(0);
        (self.objects, self.fresh) = (Objects::default(), Objects::default());
        self.changed();
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let kept = self.objects.by_key.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(Arc::clone(&kept.object))
    }

    /// Those of a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<Arc<Value>> {
        let from = (namespace.to_owned(), String::new());
        let those = self.objects.by_key.range(from..).take_while(|((of, _), _)| of == namespace);
        those.map(|(_, kept)| Arc::clone(&kept.object)).collect()
    }

    /// All, and their version: the very same list while none changes.
    pub(super) fn all(&mut self) -> (u64, Arc<Vec<Arc<Value>>>) {
        let objects = &self.objects;
        let list = self
            .list
            .get_or_insert_with(|| Arc::new(objects.by_key.values().map(|kept| Arc::clone(&kept.object)).collect()));
        (self.version, Arc::clone(list))
    }

    fn changed(&mut self) {
        self.version += 1;
        self.list = None;
    }

    /// The objects are about to weigh this.
    fn account(&mut self, weight: usize) {
        let before = std::mem::replace(&mut self.objects.weight, weight);
        self.reaccount(before);
    }

    /// The objects weighed this before.
    fn reaccount(&self, before: usize) {
        self.budget.taken.fetch_add(self.objects.weight, Ordering::Relaxed);
        self.budget.taken.fetch_sub(before, Ordering::Relaxed);
    }

    fn check(&self, weight: usize) -> Result<(), Trouble> {
        let limit = self.budget.limits.kind;
        if weight > limit { Err(Trouble::TooLarge { limit }) } else { Ok(()) }
    }

    fn check_total(&self) -> Result<(), Trouble> {
        let limit = self.budget.limits.total;
        if self.budget.taken.load(Ordering::Relaxed) > limit { Err(Trouble::TooLarge { limit }) } else { Ok(()) }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.account(0);
    }
}

fn key(object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn version(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn store(budget: &Budget) -> Store {
        Store::new(budget.clone())
    }

    fn budget(kind: usize, total: usize) -> Budget {
        Budget { limits: Limits { kind, total }, taken: Arc::default() }
    }

    fn object(namespace: &str, name: &str, version: u32, size: usize) -> Value {
        let metadata = json!({"namespace": namespace, "name": name, "resourceVersion": version.to_string()});
        json!({"metadata": metadata, "data": "x".repeat(size)})
    }

    fn names(objects: &[Arc<Value>]) -> Vec<&str> {
        objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn objects_are_those_of_the_last_list_and_what_came_after_it() {
        let mut store = store(&budget(1 << 20, 1 << 20));
        store.begin();
        for (namespace, name) in [("a", "1"), ("a", "2"), ("ab", "3")] {
            store.add(object(namespace, name, 1, 1)).unwrap();
        }
        assert_eq!(store.all().1.len(), 0, "the list has not ended");
        store.end().unwrap();
        let (version, first) = store.all();
        assert_eq!((names(&first), names(&store.in_namespace("a"))), (vec!["1", "2", "3"], vec!["1", "2"]));
        assert!(Arc::ptr_eq(&first, &store.all().1) && store.all().0 == version);
        store.apply(object("a", "0", 2, 1)).unwrap();
        store.remove(&object("a", "1", 2, 1));
        assert_eq!(names(&store.all().1), ["0", "2", "3"]);
        assert!(store.all().0 != version && store.get("a", "2").is_some() && store.get("", "2").is_none());
        // A new list keeps what is the same, and knows what is gone.
        let kept = store.get("a", "2").unwrap();
        store.begin();
        store.add(object("a", "2", 1, 1)).unwrap();
        store.add(object("ab", "3", 2, 1)).unwrap();
        store.end().unwrap();
        assert_eq!(names(&store.all().1), ["2", "3"]);
        assert!(Arc::ptr_eq(&kept, &store.get("a", "2").unwrap()));
        assert_eq!(store.get("ab", "3").unwrap()["metadata"]["resourceVersion"], "2");
    }

    #[test]
    fn what_is_too_much_is_not_kept() {
        let budget = budget(3000, 5000);
        let mut first = store(&budget);
        first.begin();
        first.add(object("a", "1", 1, 1500)).unwrap();
        assert!(first.add(object("a", "2", 1, 1500)).is_err());
        first.clear();
        assert_eq!(budget.taken.load(Ordering::Relaxed), 0);
        first.apply(object("a", "1", 1, 1000)).unwrap();
        first.apply(object("a", "1", 1, 1500)).unwrap();
        assert!(first.apply(object("a", "2", 1, 1500)).is_err());
        // Two that are each small enough can be too much together.
        first.remove(&object("a", "2", 1, 0));
        let mut second = store(&budget);
        second.apply(object("a", "1", 1, 1500)).unwrap();
        let mut third = store(&budget);
        assert!(matches!(third.apply(object("a", "1", 1, 1500)), Err(Trouble::TooLarge { limit: 5000 })));
        drop((first, second, third));
        assert_eq!(budget.taken.load(Ordering::Relaxed), 0);
    }
}
