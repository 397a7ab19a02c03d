//! The objects of one kind that are kept, within bounds of memory: also while they are listed, first or again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::budget::Share;
use super::weight::weight;
use crate::error::Trouble;

/// By namespace, empty where there is none, and name.
type Key = (String, String);

#[derive(Debug)]
struct Kept {
    object: Arc<Value>,
    weight: usize,
    /// The last listing that brought it, or under which it came.
    listing: u64,
}

#[derive(Debug)]
pub(super) struct Store {
    share: Share,
    objects: BTreeMap<Key, Kept>,
    /// The listing under way, or the last.
    listing: u64,
    /// Grows with each change.
    version: u64,
    /// All objects of this version, if somebody asked.
    list: Option<Arc<Vec<Arc<Value>>>>,
}

impl Store {
    pub(super) fn new(share: Share) -> Self {
        Self { share, objects: BTreeMap::new(), listing: 0, version: 0, list: None }
    }

    /// A listing begins. Each object that it brings takes the place of the one that is known, so that none is kept twice.
    pub(super) fn begin(&mut self) {
        self.listing += 1;
    }

    /// A listing brings an object.
    pub(super) fn add(&mut self, object: Value) -> Result<(), Trouble> {
        // What has not changed stays what it is.
        let known = self.objects.get_mut(&key(&object));
        if let Some(kept) = known.filter(|kept| version(&kept.object) == version(&object)) {
            kept.listing = self.listing;
            return Ok(());
        }
        self.apply(object)
    }

    /// A listing has ended: what it has not brought is gone.
    pub(super) fn end(&mut self) {
        let before = self.objects.len();
        let mut gone = 0;
        self.objects.retain(|_, kept| {
            let is_there = kept.listing == self.listing;
            gone += if is_there { 0 } else { kept.weight };
            is_there
        });
        self.share.shrink(gone);
        if self.objects.len() != before {
            self.changed();
        }
    }

    /// An object is there, or another one now.
    pub(super) fn apply(&mut self, object: Value) -> Result<(), Trouble> {
        let (key, weight) = (key(&object), weight(&object));
        let before = self.objects.get(&key).map_or(0, |kept| kept.weight);
        self.share.replace(before, weight)?;
        self.objects.insert(key, Kept { object: Arc::new(object), weight, listing: self.listing });
        self.changed();
        Ok(())
    }

    pub(super) fn remove(&mut self, object: &Value) {
        if let Some(kept) = self.objects.remove(&key(object)) {
            self.share.shrink(kept.weight);
        }
        self.changed();
    }

    pub(super) fn clear(&mut self) {
        self.share.clear();
        self.objects.clear();
        self.changed();
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let kept = self.objects.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(Arc::clone(&kept.object))
    }

    /// Those of a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<Arc<Value>> {
        let from = (namespace.to_owned(), String::new());
        let those = self.objects.range(from..).take_while(|((of, _), _)| of == namespace);
        those.map(|(_, kept)| Arc::clone(&kept.object)).collect()
    }

    /// All, and their version: the very same list while none changes.
    pub(super) fn all(&mut self) -> (u64, Arc<Vec<Arc<Value>>>) {
        let objects = &self.objects;
        let list =
            self.list.get_or_insert_with(|| Arc::new(objects.values().map(|kept| Arc::clone(&kept.object)).collect()));
        (self.version, Arc::clone(list))
    }

    fn changed(&mut self) {
        self.version += 1;
        self.list = None;
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
    use crate::error::Whose;
    use serde_json::json;

    fn budget(kind: usize, total: usize) -> Budget {
        Budget::new(Limits { kind, ..Limits::of(total) })
    }

    fn store(budget: &Budget) -> Store {
        Store::new(budget.share(None))
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
        store.end();
        let (version, first) = store.all();
        assert_eq!((names(&first), names(&store.in_namespace("a"))), (vec!["1", "2", "3"], vec!["1", "2"]));
        assert!(Arc::ptr_eq(&first, &store.all().1) && store.all().0 == version);
        store.apply(object("a", "0", 2, 1)).unwrap();
        store.remove(&object("a", "1", 2, 1));
        assert_eq!(names(&store.all().1), ["0", "2", "3"]);
        assert!(store.all().0 != version && store.get("a", "2").is_some() && store.get("", "2").is_none());
        // A new list keeps what is the same, and knows what is gone only when it has ended.
        let kept = store.get("a", "2").unwrap();
        store.begin();
        store.add(object("a", "2", 1, 1)).unwrap();
        store.add(object("ab", "3", 2, 1)).unwrap();
        assert_eq!(names(&store.all().1), ["0", "2", "3"]);
        store.end();
        assert_eq!(names(&store.all().1), ["2", "3"]);
        assert!(Arc::ptr_eq(&kept, &store.get("a", "2").unwrap()));
        assert_eq!(store.get("ab", "3").unwrap()["metadata"]["resourceVersion"], "2");
        let version = store.all().0;
        store.begin();
        store.add(object("a", "2", 1, 1)).unwrap();
        store.add(object("ab", "3", 2, 1)).unwrap();
        store.end();
        assert_eq!(store.all().0, version, "nothing has changed");
    }

    #[test]
    fn what_is_too_much_is_not_kept() {
        let budget = budget(3000, 5000);
        let mut first = store(&budget);
        first.begin();
        first.add(object("a", "1", 1, 1500)).unwrap();
        assert!(first.add(object("a", "2", 1, 1500)).is_err());
        first.clear();
        assert_eq!(budget.all(), 0);
        first.apply(object("a", "1", 1, 1000)).unwrap();
        first.apply(object("a", "1", 1, 1500)).unwrap();
        assert!(first.apply(object("a", "2", 1, 1500)).is_err());
        // Two that are each small enough can be too much together.
        let mut second = store(&budget);
        second.apply(object("a", "1", 1, 1500)).unwrap();
        let mut third = store(&budget);
        let refused = Err(Trouble::TooLarge { whose: Whose::All, limit: 5000 });
        assert_eq!(third.apply(object("a", "1", 1, 1500)), refused);
        drop((first, second, third));
        assert_eq!(budget.all(), 0);
    }

    #[test]
    fn what_is_listed_counts_while_it_is_listed_and_no_object_counts_twice() {
        let budget = budget(3000, 5000);
        let mut first = store(&budget);
        let mut second = store(&budget);
        for store in [&mut first, &mut second] {
            store.begin();
            store.add(object("a", "1", 1, 1500)).unwrap();
        }
        let mut third = store(&budget);
        third.begin();
        assert!(third.add(object("a", "1", 1, 1500)).is_err(), "no listing has ended");
        first.end();
        // All of it is another one now, and has room all the same.
        let taken = budget.all();
        first.begin();
        first.add(object("a", "1", 2, 1500)).unwrap();
        first.add(object("a", "2", 2, 100)).unwrap();
        first.end();
        assert!(budget.all() > taken && budget.all() < taken + 1000, "{} {taken}", budget.all());
        first.begin();
        first.end();
        assert!(budget.all() < taken, "what is gone counts no more");
    }
}
