//! A partial object merged into an object, as server-side apply would. It is done by structure, without the schema: maps
//! merge; lists merge where Kubernetes' own kinds say by which keys. Other lists are atomic, and Kubernetes changes no
//! atomic lists by an apply configuration, because what it does not name would be lost: such a change is refused.

use serde_json::{Map, Value};

/// Lists of maps in Kubernetes' own kinds: the field, and the keys by which two items are the same.
const LISTS: &[(&str, &[&str])] = &[
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
    let is_known = !group.contains('.') || group.ends_with(".k8s.io");
    let Value::Object(patch) = patch else { return Err("it is no object".to_owned()) };
    Merge { is_known }.map(object, patch, "")
}

struct Merge {
    /// Whether the object is of one of Kubernetes' own kinds.
    is_known: bool,
}

impl Merge {
    /// Recursive: an expression makes no deep objects.
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
                // Nothing to merge is no change.
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
            let Value::Object(item) = item else { return Err(format!("{at} has an item that is no object")) };
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

    /// What an item is told apart by; none where that is not known.
    fn keys(&self, field: &str, path: &str, item: &Value) -> Option<Vec<(&'static str, Value)>> {
        if !self.is_known && path != ".metadata.ownerReferences" {
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
        LISTS.iter().filter(|(name, _)| *name == field).find_map(|(_, keys)| of_item(keys))
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
    fn what_would_lose_items_is_refused() {
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
