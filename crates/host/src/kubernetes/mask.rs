//! `field_masks`: the fields of an object that a program wants, and no others. A path goes through lists by itself:
//! `spec.containers.image` is the image of each container.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Fields to keep.
#[derive(Debug, Default)]
pub(crate) struct Mask(BTreeMap<String, Node>);

#[derive(Debug)]
enum Node {
    Whole,
    Part(Mask),
}

impl Mask {
    /// None keeps everything, as no paths do.
    pub(crate) fn read(paths: Option<&BTreeSet<String>>) -> Option<Self> {
        let paths = paths.filter(|paths| !paths.is_empty())?;
        let mut mask = Self::default();
        for path in paths {
            mask.add(path);
        }
        // Without these a typed client does not know what it has read.
        mask.add("apiVersion");
        mask.add("kind");
        Some(mask)
    }

    fn add(&mut self, path: &str) {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        match (self.0.get_mut(name), rest) {
            // What is kept whole is kept with all of its parts.
            (Some(Node::Whole), _) => {}
            (Some(Node::Part(part)), Some(rest)) => part.add(rest),
            (None, Some(rest)) => {
                let mut part = Self::default();
                part.add(rest);
                self.0.insert(name.to_owned(), Node::Part(part));
            }
            (_, None) => {
                self.0.insert(name.to_owned(), Node::Whole);
            }
        }
    }

    /// The object with these fields only.
    pub(crate) fn apply(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => Value::Object(self.fields(fields)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.apply(item)).collect()),
            // A path into something that has no fields names nothing in it.
            _ => Value::Null,
        }
    }

    fn fields(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        let kept = self.0.iter().filter_map(|(name, node)| {
            let value = fields.get(name)?;
            let kept = match node {
                Node::Whole => value.clone(),
                Node::Part(_) if !value.is_object() && !value.is_array() => return None,
                Node::Part(part) => part.apply(value),
            };
            Some((name.clone(), kept))
        });
        kept.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn masked(paths: &[&str], value: &Value) -> Value {
        let paths = paths.iter().map(ToString::to_string).collect();
        Mask::read(Some(&paths)).map_or_else(|| value.clone(), |mask| mask.apply(value))
    }

    #[test]
    fn only_what_is_named_is_left() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d"}], "nodeName": "n"},
        });
        let types = json!({"apiVersion": "v1", "kind": "Pod"});
        for (paths, wanted) in [
            (&[][..], pod.clone()),
            (&["nothing", "spec.nodeName.deeper"], json!({"spec": {}})),
            (&["metadata.name"], json!({"metadata": {"name": "a"}})),
            (&["metadata", "metadata.name"], json!({"metadata": pod["metadata"]})),
            (&["metadata.name", "metadata"], json!({"metadata": pod["metadata"]})),
            (&["metadata.name", "metadata.labels.x"], json!({"metadata": {"name": "a", "labels": {"x": "y"}}})),
            (&["spec.containers.image"], json!({"spec": {"containers": [{"image": "i"}, {}]}})),
        ] {
            let mut wanted = wanted;
            for (name, value) in types.as_object().unwrap() {
                wanted[name] = value.clone();
            }
            assert_eq!(masked(paths, &pod), wanted, "{paths:?}");
        }
    }
}
