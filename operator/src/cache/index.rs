//! An index from keys to the names of objects.

use std::collections::{BTreeSet, HashMap};

/// The namespace and the name of an object.
pub(crate) type Name = (Option<String>, String);

#[derive(Debug, Default)]
pub(crate) struct Index {
    names: HashMap<String, BTreeSet<Name>>,
    keys: HashMap<Name, Vec<String>>,
}

impl Index {
    /// Returns the names of the objects with this key.
    pub(crate) fn get(&self, key: &str) -> Vec<Name> {
        self.names.get(key).into_iter().flatten().cloned().collect()
    }

    pub(crate) fn insert(&mut self, name: Name, keys: Vec<String>) {
        if self.keys.get(&name) == Some(&keys) {
            return;
        }
        self.remove(&name);
        for key in &keys {
            self.names.entry(key.clone()).or_default().insert(name.clone());
        }
        self.keys.insert(name, keys);
    }

    pub(crate) fn remove(&mut self, name: &Name) {
        for key in self.keys.remove(name).unwrap_or_default() {
            if let Some(names) = self.names.get_mut(&key) {
                names.remove(name);
                if names.is_empty() {
                    self.names.remove(&key);
                }
            }
        }
    }

    pub(super) fn replace(&mut self, objects: impl Iterator<Item = (Name, Vec<String>)>) {
        *self = Self::default();
        objects.for_each(|(name, keys)| self.insert(name, keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Name {
        (None, name.to_owned())
    }

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn get_returns_objects_by_their_current_keys() {
        let mut index = Index::default();
        index.insert(name("b"), keys(&["x", "y"]));
        index.insert(name("a"), keys(&["x"]));
        assert_eq!(index.get("x"), [name("a"), name("b")]);
        index.insert(name("b"), keys(&["z"]));
        assert_eq!((index.get("x"), index.get("y")), (vec![name("a")], Vec::new()));
        index.remove(&name("a"));
        index.remove(&name("c"));
        assert_eq!((index.get("x"), index.get("z")), (Vec::new(), vec![name("b")]));
        index.replace([(name("d"), keys(&["x"]))].into_iter());
        assert_eq!((index.get("x"), index.get("z")), (vec![name("d")], Vec::new()));
        index.remove(&name("d"));
        assert!(index.names.is_empty() && index.keys.is_empty(), "{index:?}");
    }
}
