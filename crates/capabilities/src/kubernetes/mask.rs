//! `field_masks`: limits the answer to some fields of an object. A path applies to all items of a list:
//! `spec.containers.image` selects the image of each container.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::error::HostCallError;

/// The maximum number of paths in a mask.
const MAX_PATHS: usize = 256;
/// The maximum number of fields in a path.
const MAX_DEPTH: usize = 64;

/// The fields to keep.
#[derive(Debug, Default)]
pub(crate) struct Mask(BTreeMap<String, Node>);

#[derive(Debug)]
enum Node {
    Whole,
    Part(Mask),
}

impl Mask {
    /// Parses the paths of a mask. Returns `None`, which keeps all fields, if there are no paths.
    ///
    /// # Errors
    /// Returns [`HostCallError::Request`] if there are too many paths, or a path is too deep.
    pub(crate) fn read(call: &str, paths: Option<&BTreeSet<String>>) -> Result<Option<Self>, HostCallError> {
        let Some(paths) = paths.filter(|paths| !paths.is_empty()) else { return Ok(None) };
        let is_deep = |path: &String| path.split('.').count() > MAX_DEPTH;
        if paths.len() > MAX_PATHS || paths.iter().any(is_deep) {
            let error = format!("`field_masks` takes at most {MAX_PATHS} paths of at most {MAX_DEPTH} fields");
            return Err(HostCallError::Request { call: call.to_owned(), error });
        }
        let mut mask = Self::default();
        for path in paths {
            mask.add(path);
        }
        // A typed client needs these fields to decode the object.
        mask.add("apiVersion");
        mask.add("kind");
        Ok(Some(mask))
    }

    fn add(&mut self, path: &str) {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        match (self.0.get_mut(name), rest) {
            // The whole field is already kept.
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

    /// Returns the value with only the fields of the mask.
    pub(crate) fn apply(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => Value::Object(self.fields(fields)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.apply(item)).collect()),
            // A scalar has no fields that a path could select.
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
    fn too_many_or_too_deep_paths_are_refused() {
        for (paths, is_accepted) in
            [(vec!["a".repeat(5000)], true), (vec![".".repeat(63)], true), (vec![".".repeat(64)], false)]
        {
            assert_eq!(Mask::read("c", Some(&paths.into_iter().collect())).is_ok(), is_accepted);
        }
        assert!(Mask::read("c", Some(&(0..257).map(|number| number.to_string()).collect())).is_err());
    }

    #[test]
    fn only_the_fields_of_the_mask_are_kept() {
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
