//! Merges a partial object into an object like server-side apply, but without the schema. Maps are merged. Lists are merged if
//! their keys are known from the built-in kinds of Kubernetes. All other lists are atomic. As in Kubernetes, an apply
//! configuration cannot change an atomic list: items that it does not name would be lost.

use serde_json::{Map, Value};

/// The lists of type `map` in the built-in kinds of Kubernetes: the name of the field, and the keys that identify an item.
const LIST_KEYS: &[(&str, &[&str])] = &[
    ("conditions", &["type"]),
    ("containers", &["name"]),
    ("env", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("matchConditions", &["name"]),
    ("ownerReferences", &["uid"]),
    ("ports", &["containerPort", "protocol"]),
    ("ports", &["port", "protocol"]),
    ("resourceClaims", &["name"]),
    ("claims", &["name"]),
    ("schedulingGates", &["name"]),
    ("secrets", &["name"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
    ("webhooks", &["name"]),
];

pub(super) fn merge(object: &mut Value, patch: Value) -> Result<(), String> {
    let group =
        object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let is_builtin_kind = !group.contains('.') || group.ends_with(".k8s.io");
    let Value::Object(patch) = patch else { return Err("it is not an object".to_owned()) };
    Merge { is_builtin_kind }.map(object, patch, "")
}

struct Merge {
    /// True if the object is of a built-in kind of Kubernetes.
    is_builtin_kind: bool,
}

impl Merge {
    /// Merges a map. `at` is its path. The recursion is bounded: an expression cannot construct deep objects.
    fn map(&self, target: &mut Value, patch: Map<String, Value>, at: &str) -> Result<(), String> {
        if !target.is_object() {
            *target = Value::Object(Map::new());
        }
        let Value::Object(target) = target else { return Ok(()) };
        for (field, value) in patch {
            let at = format!("{at}.{field}");
            match value {
                Value::Object(value) => {
                    self.map(target.entry(field).or_insert(Value::Null), value, &at)?;
                }
                // An empty list changes nothing.
                Value::Array(items) if items.is_empty() => {}
                Value::Array(items) => {
                    self.list(target.entry(field.clone()).or_insert(Value::Null), items, &field, &at)?;
                }
                value => {
                    target.insert(field, value);
                }
            }
        }
        Ok(())
    }

    fn list(&self, target: &mut Value, items: Vec<Value>, field: &str, at: &str) -> Result<(), String> {
        if !target.is_array() {
            *target = Value::Array(Vec::new());
        }
        let Value::Array(target) = target else { return Ok(()) };
        if at == ".metadata.finalizers" {
            let new: Vec<_> = items.into_iter().filter(|item| !target.contains(item)).collect();
            target.extend(new);
            return Ok(());
        }
        let mut seen = Vec::new();
        for item in items {
            let keys = self.keys(field, at, &item).ok_or_else(|| {
                format!("{at} is an atomic list, or one whose keys are not known: change it by a JSONPatch")
            })?;
            if seen.contains(&keys) {
                return Err(format!("{at} has two items with the same keys"));
            }
            let Value::Object(item) = item else { return Err(format!("{at} has an item that is not an object")) };
            let found = target.iter_mut().find(|existing| self.keys(field, at, existing).as_ref() == Some(&keys));
            seen.push(keys);
            if let Some(existing) = found {
                self.map(existing, item, at)?;
            } else {
                let mut added = Value::Null;
                self.map(&mut added, item, at)?;
                target.push(added);
            }
        }
        Ok(())
    }

    /// Returns the keys of an item with their values; `None` if the keys of the list are not known.
    fn keys(&self, field: &str, path: &str, item: &Value) -> Option<Vec<(&'static str, Value)>> {
        if !self.is_builtin_kind && path != ".metadata.ownerReferences" {
            return None;
        }
        let of_item = |keys: &&'static [&'static str]| -> Option<Vec<(&'static str, Value)>> {
            let value = |key: &&'static str| match item.get(key) {
                Some(value) => Some((*key, value.clone())),
                None if *key == "protocol" => Some((*key, "TCP".into())),
                None => None,
            };
            keys.iter().map(value).collect()
        };
        LIST_KEYS.iter().filter(|(name, _)| *name == field).find_map(|(_, keys)| of_item(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "finalizers": ["x/a"]}, "spec": spec})
    }

    #[test]
    fn maps_merge_and_lists_merge_by_their_keys() {
        let web = json!({"name": "web", "image": "a", "ports": [{"containerPort": 80, "name": "http"}]});
        let mut object = pod(&json!({"containers": [web], "nodeName": "n"}));
        let patch = json!({
            "metadata": {"labels": {"a": "b"}, "finalizers": ["x/a", "x/b"]},
            "spec": {"containers": [
                {"name": "web", "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80, "protocol": "TCP", "hostPort": 1}]},
                {"name": "new", "image": "b"},
            ]},
        });
        merge(&mut object, patch).unwrap();
        let ports = json!([{"containerPort": 80, "name": "http", "protocol": "TCP", "hostPort": 1}]);
        let web = json!({"name": "web", "image": "a", "ports": ports, "env": [{"name": "A", "value": "1"}]});
        let mut wanted = pod(&json!({"containers": [web, {"name": "new", "image": "b"}], "nodeName": "n"}));
        wanted["metadata"]["labels"] = json!({"a": "b"});
        wanted["metadata"]["finalizers"] = json!(["x/a", "x/b"]);
        assert_eq!(object, wanted);
    }

    #[test]
    fn merges_that_would_lose_items_are_refused() {
        for (object, patch) in [
            (pod(&json!({"tolerations": []})), json!({"spec": {"tolerations": [{"key": "a"}]}})),
            (pod(&json!({})), json!({"spec": {"containers": [{"image": "a"}]}})),
            (pod(&json!({})), json!({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}})),
            (json!({"apiVersion": "example.com/v1"}), json!({"spec": {"containers": [{"name": "a"}]}})),
        ] {
            assert!(merge(&mut object.clone(), patch.clone()).is_err(), "{object} {patch}");
        }
    }
}
