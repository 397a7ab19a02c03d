//! `field_masks`: the fields of an object that a program wants, and no others. A path goes through lists by itself:
//! `spec.containers.image` is the image of each container.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::error::AskError;

/// How many fields may be named.
const MAX_PATHS: usize = 256;
/// How deep they may lie.
const MAX_DEPTH: usize = 64;

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
    ///
    /// # Errors
    /// When there are too many paths, or one goes too deep.
    pub(crate) fn read(call: &str, paths: Option<&BTreeSet<String>>) -> Result<Option<Self>, AskError> {
        let Some(paths) = paths.filter(|paths| !paths.is_empty()) else { return Ok(None) };
        let is_deep = |path: &String| path.split('.').count() > MAX_DEPTH;
        if paths.len() > MAX_PATHS || paths.iter().any(is_deep) {
            let error = format!("`field_masks` takes at most {MAX_PATHS} paths of at most {MAX_DEPTH} fields");
            return Err(AskError::Request { call: call.to_owned(), error });
        }
        let mut mask = Self::default();
        for path in paths {
            mask.add(path);
        }
        // Without these a typed client does not know what it has read.
        mask.add("apiVersion");
        mask.add("kind");
        Ok(Some(mask))
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
        Mask::read("c", Some(&paths)).unwrap().map_or_else(|| value.clone(), |mask| mask.apply(value))
    }

    #[test]
    fn a_path_that_goes_too_deep_is_refused() {
        for (paths, is_taken) in
            [(vec!["a".repeat(5000)], true), (vec![".".repeat(63)], true), (vec![".".repeat(64)], false)]
        {
            assert_eq!(Mask::read("c", Some(&paths.into_iter().collect())).is_ok(), is_taken);
        }
        assert!(Mask::read("c", Some(&(0..257).map(|number| number.to_string()).collect())).is_err());
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
