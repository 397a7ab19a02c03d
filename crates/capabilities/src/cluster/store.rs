//! The objects of one kind in memory. The memory budget also holds during a list and a repeated list.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::budget::Reservation;
use super::weight::weight;
use crate::error::KindUnavailable;

/// The namespace, empty for a cluster-scoped object, and the name.
type Key = (String, String);

#[derive(Debug)]
struct Entry {
    object: Arc<Value>,
    weight: usize,
    /// The number of the last list that returned the object, or during which it was applied.
    list_number: u64,
}

#[derive(Debug)]
pub(super) struct Store {
    reservation: Reservation,
    objects: BTreeMap<Key, Entry>,
    /// The number of the current or last list.
    list_number: u64,
    /// A number that grows with each change.
    version: u64,
    /// All objects of this version; `None` until the next call of `all`.
    snapshot: Option<Arc<Vec<Arc<Value>>>>,
}

impl Store {
    pub(super) fn new(reservation: Reservation) -> Self {
        Self { reservation, objects: BTreeMap::new(), list_number: 0, version: 0, snapshot: None }
    }

    /// Begins a list. Each listed object replaces the known object, so that no object is in memory twice.
    pub(super) fn begin_list(&mut self) {
        self.list_number += 1;
    }

    /// Adds an object of the current list.
    pub(super) fn add_listed(&mut self, object: Value) -> Result<(), KindUnavailable> {
        // An unchanged object stays the same allocation, and the version does not grow.
        let known = self.objects.get_mut(&key(&object));
        if let Some(entry) = known.filter(|entry| version(&entry.object) == version(&object)) {
            entry.list_number = self.list_number;
            return Ok(());
        }
        self.apply(object)
    }

    /// Ends a list: removes the objects that it did not return.
    pub(super) fn end_list(&mut self) {
        let before = self.objects.len();
        let mut removed = 0;
        self.objects.retain(|_, entry| {
            let is_listed = entry.list_number == self.list_number;
            removed += if is_listed { 0 } else { entry.weight };
            is_listed
        });
        self.reservation.shrink(removed);
        if self.objects.len() != before {
            self.bump_version();
        }
    }

    /// Adds or replaces an object.
    pub(super) fn apply(&mut self, object: Value) -> Result<(), KindUnavailable> {
        let (key, weight) = (key(&object), weight(&object));
        let before = self.objects.get(&key).map_or(0, |entry| entry.weight);
        self.reservation.replace(before, weight)?;
        self.objects.insert(key, Entry { object: Arc::new(object), weight, list_number: self.list_number });
        self.bump_version();
        Ok(())
    }

    pub(super) fn remove(&mut self, object: &Value) {
        if let Some(entry) = self.objects.remove(&key(object)) {
            self.reservation.shrink(entry.weight);
        }
        self.bump_version();
    }

    pub(super) fn clear(&mut self) {
        self.reservation.clear();
        self.objects.clear();
        self.bump_version();
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let entry = self.objects.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(Arc::clone(&entry.object))
    }

    /// Returns the objects of a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<Arc<Value>> {
        let from = (namespace.to_owned(), String::new());
        let entries = self.objects.range(from..).take_while(|((of, _), _)| of == namespace);
        entries.map(|(_, entry)| Arc::clone(&entry.object)).collect()
    }

    /// Returns the version and all objects. The list is the same allocation until an object changes.
    pub(super) fn all(&mut self) -> (u64, Arc<Vec<Arc<Value>>>) {
        let objects = &self.objects;
        let snapshot = self
            .snapshot
            .get_or_insert_with(|| Arc::new(objects.values().map(|entry| Arc::clone(&entry.object)).collect()));
        (self.version, Arc::clone(snapshot))
    }

    fn bump_version(&mut self) {
        self.version += 1;
        self.snapshot = None;
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
    use super::super::budget::{Budget, Limits};
    use super::*;
    use crate::error::LimitScope;
    use serde_json::json;

    fn budget(kind: usize, total: usize) -> Budget {
        Budget::new(Limits { kind, ..Limits::of(total) })
    }

    fn store(budget: &Budget) -> Store {
        Store::new(budget.reservation(None))
    }

    fn object(namespace: &str, name: &str, version: u32, size: usize) -> Value {
        let metadata = json!({"namespace": namespace, "name": name, "resourceVersion": version.to_string()});
        json!({"metadata": metadata, "data": "x".repeat(size)})
    }

    fn names(objects: &[Arc<Value>]) -> Vec<&str> {
        objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn the_store_has_the_objects_of_the_last_list_and_later_changes() {
        let mut store = store(&budget(1 << 20, 1 << 20));
        store.begin_list();
        for (namespace, name) in [("a", "1"), ("a", "2"), ("ab", "3")] {
            store.add_listed(object(namespace, name, 1, 1)).unwrap();
        }
        store.end_list();
        let (version, first) = store.all();
        assert_eq!((names(&first), names(&store.in_namespace("a"))), (vec!["1", "2", "3"], vec!["1", "2"]));
        assert!(Arc::ptr_eq(&first, &store.all().1) && store.all().0 == version);
        store.apply(object("a", "0", 2, 1)).unwrap();
        store.remove(&object("a", "1", 2, 1));
        assert_eq!(names(&store.all().1), ["0", "2", "3"]);
        assert!(store.all().0 != version && store.get("a", "2").is_some() && store.get("", "2").is_none());
        // A repeated list keeps unchanged objects, and removes missing objects only at its end.
        let unchanged = store.get("a", "2").unwrap();
        store.begin_list();
        store.add_listed(object("a", "2", 1, 1)).unwrap();
        store.add_listed(object("ab", "3", 2, 1)).unwrap();
        assert_eq!(names(&store.all().1), ["0", "2", "3"]);
        store.end_list();
        assert_eq!(names(&store.all().1), ["2", "3"]);
        assert!(Arc::ptr_eq(&unchanged, &store.get("a", "2").unwrap()));
        assert_eq!(store.get("ab", "3").unwrap()["metadata"]["resourceVersion"], "2");
        let version = store.all().0;
        store.begin_list();
        store.add_listed(object("a", "2", 1, 1)).unwrap();
        store.add_listed(object("ab", "3", 2, 1)).unwrap();
        store.end_list();
        assert_eq!(store.all().0, version, "no object has changed");
    }

    #[test]
    fn objects_beyond_a_limit_are_not_stored() {
        let budget = budget(3000, 5000);
        let mut first = store(&budget);
        first.begin_list();
        first.add_listed(object("a", "1", 1, 1500)).unwrap();
        assert!(first.add_listed(object("a", "2", 1, 1500)).is_err());
        first.clear();
        assert_eq!(budget.used(), 0);
        first.apply(object("a", "1", 1, 1000)).unwrap();
        first.apply(object("a", "1", 1, 1500)).unwrap();
        assert!(first.apply(object("a", "2", 1, 1500)).is_err());
        // Two stores within their limits can exceed the total limit together.
        let mut second = store(&budget);
        second.apply(object("a", "1", 1, 1500)).unwrap();
        let mut third = store(&budget);
        let refused = Err(KindUnavailable::TooLarge { scope: LimitScope::All, limit: 5000 });
        assert_eq!(third.apply(object("a", "1", 1, 1500)), refused);
        drop((first, second, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn objects_count_once_during_and_after_a_list() {
        let budget = budget(3000, 5000);
        let mut first = store(&budget);
        let mut second = store(&budget);
        for store in [&mut first, &mut second] {
            store.begin_list();
            store.add_listed(object("a", "1", 1, 1500)).unwrap();
        }
        let mut third = store(&budget);
        third.begin_list();
        assert!(third.add_listed(object("a", "1", 1, 1500)).is_err(), "objects count before the end of their list");
        first.end_list();
        // A list in which each object has changed fits, because each object replaces its predecessor.
        let used = budget.used();
        first.begin_list();
        first.add_listed(object("a", "1", 2, 1500)).unwrap();
        first.add_listed(object("a", "2", 2, 100)).unwrap();
        first.end_list();
        assert!(budget.used() > used && budget.used() < used + 1000, "{} {used}", budget.used());
        first.begin_list();
        first.end_list();
        assert!(budget.used() < used, "removed objects do not count");
    }
}
