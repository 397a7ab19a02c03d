//! The data of compiled Rego: settings and Kubernetes objects, as the policies of OPA and Gatekeeper look for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::timeout_at;

use super::metadata::ExecutionMode;
use crate::host::{Objects, Resource};
use crate::{Deadline, EvaluationError, Host};

/// Where policies of OPA find Kubernetes objects.
const KUBERNETES: &str = "kubernetes";

/// A document and the objects that it was made of: as long as these are the same, so is it.
#[derive(Debug)]
struct Made {
    of: Arc<Objects>,
    data: Arc<[u8]>,
}

/// What was last made of the host's objects.
#[derive(Debug, Default)]
pub(super) struct Documents {
    made: Mutex<Option<Made>>,
}

impl Documents {
    /// The document `data` of a policy.
    pub(super) async fn data(
        &self,
        mode: ExecutionMode,
        settings: &Arc<[u8]>,
        host: &dyn Host,
        deadline: Deadline,
    ) -> Result<Arc<[u8]>, EvaluationError> {
        let objects = match timeout_at(deadline.instant().into(), host.objects(deadline)).await {
            Ok(Ok(objects)) => objects,
            Ok(Err(why)) => return Err(EvaluationError::Failed(format!("the policy's Kubernetes objects: {why}"))),
            Err(_) => return Err(EvaluationError::DeadlineExceeded),
        };
        if mode != ExecutionMode::Gatekeeper && objects.resources.is_empty() {
            return Ok(Arc::clone(settings));
        }
        if let Some(made) = self.made_of(&objects) {
            return Ok(made);
        }
        let data = if objects.resources.is_empty() {
            make(mode, settings, &objects)?
        } else {
            // There may be very many.
            let (settings, objects) = (Arc::clone(settings), Arc::clone(&objects));
            let making = tokio::task::spawn_blocking(move || make(mode, &settings, &objects));
            match timeout_at(deadline.instant().into(), making).await {
                Ok(Ok(data)) => data?,
                Ok(Err(stopped)) => return Err(EvaluationError::Failed(stopped.to_string())),
                Err(_) => return Err(EvaluationError::DeadlineExceeded),
            }
        };
        let data: Arc<[u8]> = data.into();
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(Made { of: objects, data: Arc::clone(&data) });
        Ok(data)
    }

    fn made_of(&self, objects: &Arc<Objects>) -> Option<Arc<[u8]>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.as_ref().filter(|made| Arc::ptr_eq(&made.of, objects)).map(|made| Arc::clone(&made.data))
    }
}

fn make(mode: ExecutionMode, settings: &[u8], objects: &Objects) -> Result<Vec<u8>, EvaluationError> {
    let failed = |error: serde_json::Error| EvaluationError::Failed(format!("the policy's data: {error}"));
    if mode == ExecutionMode::Gatekeeper {
        return serde_json::to_vec(&BTreeMap::from([("inventory", inventory(objects))])).map_err(failed);
    }
    let mut settings: Map<String, Value> = serde_json::from_slice(settings).map_err(failed)?;
    settings.remove(KUBERNETES);
    let mut data: BTreeMap<&str, Node<'_>> =
        settings.iter().map(|(key, value)| (key.as_str(), Node::Value(value))).collect();
    data.insert(KUBERNETES, by_plural(objects));
    serde_json::to_vec(&data).map_err(failed)
}

/// `<plural>[.<namespace>].<name>`; kinds of which there are no objects are there, and empty.
fn by_plural(objects: &Objects) -> Node<'_> {
    let mut root = Node::default();
    for resource in &objects.resources {
        let place = root.at(&resource.plural);
        for object in &resource.objects {
            let Some(Name { name, namespace }) = name_of(resource, object) else { continue };
            match namespace {
                Some(namespace) => place.at(namespace).at(name).set(object),
                None => place.at(name).set(object),
            }
        }
    }
    root
}

/// `cluster.<group version>.<kind>.<name>` and `namespace.<namespace>.<group version>.<kind>.<name>`.
fn inventory(objects: &Objects) -> Node<'_> {
    let mut root = Node::default();
    root.at("cluster");
    root.at("namespace");
    for resource in &objects.resources {
        for object in &resource.objects {
            let Some(Name { name, namespace }) = name_of(resource, object) else { continue };
            let place = match namespace {
                Some(namespace) => root.at("namespace").at(namespace),
                None => root.at("cluster"),
            };
            place.at(&resource.api_version).at(&resource.kind).at(name).set(object);
        }
    }
    root
}

struct Name<'a> {
    name: &'a str,
    namespace: Option<&'a str>,
}

/// None for what the API server would not have sent.
fn name_of<'a>(resource: &Resource, object: &'a Value) -> Option<Name<'a>> {
    let text = |field: &str| object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
    let namespace = if resource.is_namespaced { Some(text("namespace")?) } else { None };
    Some(Name { name: text("name")?, namespace })
}

/// A tree of objects that are not copied.
#[derive(Serialize)]
#[serde(untagged)]
enum Node<'a> {
    Value(&'a Value),
    Branches(BTreeMap<&'a str, Node<'a>>),
}

impl Default for Node<'_> {
    fn default() -> Self {
        Self::Branches(BTreeMap::new())
    }
}

impl<'a> Node<'a> {
    /// The node of this name, made if it is missing.
    fn at(&mut self, name: &'a str) -> &mut Self {
        match self {
            Self::Branches(branches) => branches.entry(name).or_default(),
            Self::Value(_) => self,
        }
    }

    fn set(&mut self, object: &'a Value) {
        *self = Self::Value(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn objects() -> Objects {
        let resource = |api_version: &str, kind: &str, plural: &str, objects: Vec<Value>| Resource {
            api_version: api_version.into(),
            kind: kind.into(),
            plural: plural.into(),
            is_namespaced: kind != "Node",
            objects: objects.into_iter().map(Arc::new).collect(),
        };
        Objects {
            resources: vec![
                resource("v1", "Node", "nodes", vec![json!({"metadata": {"name": "n"}, "a": 1})]),
                resource(
                    "networking.k8s.io/v1",
                    "Ingress",
                    "ingresses",
                    vec![
                        json!({"metadata": {"name": "i", "namespace": "x"}}),
                        json!({"metadata": {"name": "j", "namespace": "x"}}),
                        json!({"metadata": {"name": "nowhere"}}),
                    ],
                ),
                resource("v1", "Service", "services", vec![]),
            ],
        }
    }

    fn made(mode: ExecutionMode) -> Value {
        serde_json::from_slice(&make(mode, br#"{"max":1,"kubernetes":"mine"}"#, &objects()).unwrap()).unwrap()
    }

    #[test]
    fn policies_of_opa_find_objects_by_plural_namespace_and_name_beside_the_settings() {
        let [i, j] = ["i", "j"].map(|name| json!({"metadata": {"name": name, "namespace": "x"}}));
        let expected = json!({
            "max": 1,
            "kubernetes": {
                "nodes": {"n": {"metadata": {"name": "n"}, "a": 1}},
                "ingresses": {"x": {"i": i, "j": j}},
                "services": {},
            },
        });
        assert_eq!(made(ExecutionMode::Opa), expected);
    }

    #[test]
    fn policies_of_gatekeeper_find_objects_in_the_inventory() {
        let [i, j] = ["i", "j"].map(|name| json!({"metadata": {"name": name, "namespace": "x"}}));
        let expected = json!({"inventory": {
            "cluster": {"v1": {"Node": {"n": {"metadata": {"name": "n"}, "a": 1}}}},
            "namespace": {"x": {"networking.k8s.io/v1": {"Ingress": {"i": i, "j": j}}}},
        }});
        assert_eq!(made(ExecutionMode::Gatekeeper), expected);
    }
}
