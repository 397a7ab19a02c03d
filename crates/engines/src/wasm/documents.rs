//! Builds the document `data` of compiled Rego from settings and Kubernetes objects, in the layout that OPA and Gatekeeper
//! policies expect.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use super::metadata::ExecutionMode;
use crate::host::{Objects, Resource};
use crate::{Deadline, EvaluationError, Host};

/// The key in `data` under which OPA policies find Kubernetes objects.
const KUBERNETES: &str = "kubernetes";

/// A document and the objects that it was built from. The document stays valid as long as the host returns the same objects.
#[derive(Debug)]
struct CachedDocument {
    objects: Arc<Objects>,
    data: Arc<[u8]>,
}

/// The cache of the last document. The task that builds a document holds the lock, so that only one task builds at a time.
#[derive(Debug, Default)]
pub(super) struct DocumentCache {
    cached: Arc<Mutex<Option<CachedDocument>>>,
}

impl DocumentCache {
    /// Returns the document `data` of a policy.
    pub(super) async fn data(
        &self,
        mode: ExecutionMode,
        settings: &Arc<[u8]>,
        host: &dyn Host,
        deadline: Deadline,
    ) -> Result<Arc<[u8]>, EvaluationError> {
        let until = deadline.instant().into();
        let objects = match timeout_at(until, host.objects(deadline)).await {
            Ok(Ok(objects)) => objects,
            Ok(Err(why)) => {
                return Err(EvaluationError::Failed(format!("cannot read the policy's Kubernetes objects: {why}")));
            }
            Err(_) => return Err(EvaluationError::DeadlineExceeded),
        };
        if mode != ExecutionMode::Gatekeeper && objects.resources.is_empty() {
            return Ok(Arc::clone(settings));
        }
        let lock = timeout_at(until, Arc::clone(&self.cached).lock_owned()).await;
        let mut last = lock.map_err(|_| EvaluationError::DeadlineExceeded)?;
        if let Some(cached) = last.as_ref().filter(|cached| Arc::ptr_eq(&cached.objects, &objects)) {
            return Ok(Arc::clone(&cached.data));
        }
        let is_small = objects.resources.is_empty();
        let settings = Arc::clone(settings);
        // The document is cached even if this evaluation has reached its deadline. Otherwise a document that takes longer than
        // a deadline would never be ready, because the next evaluation has no more time than this one.
        let build = move || {
            let data: Arc<[u8]> = build_document(mode, &settings, &objects)?.into();
            *last = Some(CachedDocument { objects, data: Arc::clone(&data) });
            Ok(data)
        };
        if is_small {
            return build();
        }
        match timeout_at(until, tokio::task::spawn_blocking(build)).await {
            Ok(Ok(data)) => data,
            Ok(Err(stopped)) => Err(EvaluationError::Failed(stopped.to_string())),
            Err(_) => Err(EvaluationError::DeadlineExceeded),
        }
    }
}

fn build_document(mode: ExecutionMode, settings: &[u8], objects: &Objects) -> Result<Vec<u8>, EvaluationError> {
    let failed =
        |error: serde_json::Error| EvaluationError::Failed(format!("cannot build the policy's `data`: {error}"));
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

/// Builds the tree `<plural>[.<namespace>].<name>`. A kind without objects has an empty branch.
fn by_plural(objects: &Objects) -> Node<'_> {
    let mut root = Node::default();
    for resource in &objects.resources {
        let branch = root.at(&resource.plural);
        for object in &resource.objects {
            let Some(Name { name, namespace }) = name_of(resource, object) else { continue };
            match namespace {
                Some(namespace) => branch.at(namespace).at(name).set(object),
                None => branch.at(name).set(object),
            }
        }
    }
    root
}

/// Builds the tree `cluster.<group version>.<kind>.<name>` and `namespace.<namespace>.<group version>.<kind>.<name>`.
fn inventory(objects: &Objects) -> Node<'_> {
    let mut root = Node::default();
    root.at("cluster");
    root.at("namespace");
    for resource in &objects.resources {
        for object in &resource.objects {
            let Some(Name { name, namespace }) = name_of(resource, object) else { continue };
            let branch = match namespace {
                Some(namespace) => root.at("namespace").at(namespace),
                None => root.at("cluster"),
            };
            branch.at(&resource.api_version).at(&resource.kind).at(name).set(object);
        }
    }
    root
}

struct Name<'a> {
    name: &'a str,
    namespace: Option<&'a str>,
}

/// Returns the name of an object; `None` if the object lacks a name or namespace, which an API server never sends.
fn name_of<'a>(resource: &Resource, object: &'a Value) -> Option<Name<'a>> {
    let text = |field: &str| object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
    let namespace = if resource.is_namespaced { Some(text("namespace")?) } else { None };
    Some(Name { name: text("name")?, namespace })
}

/// A tree that borrows its objects.
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
    /// Returns the child with this name, and creates a missing child.
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
    use std::future::ready;
    use std::time::Duration;

    use super::*;
    use crate::host::{HostCall, HostFuture};
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

    fn built(mode: ExecutionMode) -> Value {
        let settings = br#"{"max":1,"kubernetes":"mine"}"#;
        serde_json::from_slice(&build_document(mode, settings, &objects()).unwrap()).unwrap()
    }

    #[test]
    fn opa_policies_find_the_settings_and_the_objects_by_name() {
        let [i, j] = ["i", "j"].map(|name| json!({"metadata": {"name": name, "namespace": "x"}}));
        let expected = json!({
            "max": 1,
            "kubernetes": {
                "nodes": {"n": {"metadata": {"name": "n"}, "a": 1}},
                "ingresses": {"x": {"i": i, "j": j}},
                "services": {},
            },
        });
        assert_eq!(built(ExecutionMode::Opa), expected);
    }

    #[test]
    fn gatekeeper_policies_find_objects_in_the_inventory() {
        let [i, j] = ["i", "j"].map(|name| json!({"metadata": {"name": name, "namespace": "x"}}));
        let expected = json!({"inventory": {
            "cluster": {"v1": {"Node": {"n": {"metadata": {"name": "n"}, "a": 1}}}},
            "namespace": {"x": {"networking.k8s.io/v1": {"Ingress": {"i": i, "j": j}}}},
        }});
        assert_eq!(built(ExecutionMode::Gatekeeper), expected);
    }

    #[derive(Debug)]
    struct Cluster(Arc<Objects>);

    impl Host for Cluster {
        fn call<'a>(&'a self, _: HostCall<'a>, _: Deadline) -> HostFuture<'a, Vec<u8>> {
            Box::pin(ready(Err("no".into())))
        }

        fn objects(&self, _: Deadline) -> HostFuture<'_, Arc<Objects>> {
            Box::pin(ready(Ok(Arc::clone(&self.0))))
        }

        fn namespace<'a>(&'a self, _: &'a str, _: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
            Box::pin(ready(Ok(None)))
        }
    }

    #[tokio::test]
    async fn a_document_that_misses_the_deadline_is_built_once_and_cached() {
        let mut objects = objects();
        let service = |number: usize| Arc::new(json!({"metadata": {"name": number.to_string(), "namespace": "x"}}));
        objects.resources[2].objects = (0..50_000).map(service).collect();
        let (documents, host) = (DocumentCache::default(), Cluster(Arc::new(objects)));
        let (mode, settings) = (ExecutionMode::Opa, Arc::from(*b"{}"));
        for _ in 0..3 {
            let data = documents.data(mode, &settings, &host, Deadline::after(Duration::ZERO)).await;
            assert_eq!(data, Err(EvaluationError::DeadlineExceeded));
        }
        // The lock is held until the document is built.
        let cached = documents.cached.lock().await.as_ref().map(|cached| Arc::clone(&cached.data)).unwrap();
        let data = documents.data(mode, &settings, &host, Deadline::after(Duration::from_mins(1))).await.unwrap();
        assert!(Arc::ptr_eq(&cached, &data));
    }
}
