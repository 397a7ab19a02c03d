//! The objects of a folder of manifests, for a policy server without a cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::core::ApiResource;
use proviso_crds::context;
use proviso_engines::host::Resource;
use serde_json::Value;

use crate::kind::Kind;

/// The current objects of the folder.
#[derive(Debug, Default)]
pub struct FolderObjects(Mutex<Content>);

/// The objects of a kind by namespace, which is empty for a cluster-scoped object, and name.
type ByName = BTreeMap<(String, String), Arc<Value>>;

#[derive(Debug, Default)]
struct Content {
    version: u64,
    kinds: BTreeMap<Kind, ByName>,
}

impl FolderObjects {
    /// Replaces all objects. A namespaced object without a namespace gets the namespace `default`, as with kubectl.
    pub fn replace(&self, objects: impl IntoIterator<Item = Value>) {
        let mut content = self.content();
        let mut kinds = BTreeMap::<Kind, ByName>::new();
        for mut object in objects {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let kind = Kind::new(&text(&object["apiVersion"]), &text(&object["kind"]));
            if context::is_cluster_scoped(&kind.api_version, &kind.kind) == Some(false)
                && object["metadata"]["namespace"].is_null()
                && let Some(metadata) = object["metadata"].as_object_mut()
            {
                metadata.insert("namespace".to_owned(), Value::from("default"));
            }
            let key = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
            // An unchanged object stays the same allocation.
            let old = content.kinds.get(&kind).and_then(|kind| kind.get(&key)).filter(|old| ***old == object);
            let object = old.map_or_else(|| Arc::new(object), Arc::clone);
            kinds.entry(kind).or_default().insert(key, object);
        }
        if kinds != content.kinds {
            content.kinds = kinds;
            content.version += 1;
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.content().version
    }

    pub(crate) fn is_namespaced(&self, kind: &Kind) -> bool {
        let content = self.content();
        is_namespaced(kind, content.kinds.get(kind))
    }

    pub(crate) fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.content().kinds.get(kind)?.get(&key).cloned()
    }

    pub(crate) fn list(&self, kind: &Kind, namespace: Option<&str>) -> Vec<Arc<Value>> {
        list(self.content().kinds.get(kind), namespace)
    }

    pub(crate) fn all(&self, kind: &Kind, namespace: Option<&str>) -> (u64, Resource) {
        let content = self.content();
        let objects = content.kinds.get(kind);
        let resource = Resource {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
            plural: ApiResource::from_gvk(&kind.gvk()).plural,
            is_namespaced: is_namespaced(kind, objects),
            objects: list(objects, namespace),
        };
        (content.version, resource)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the kind is namespaced. The scope of a custom kind is derived from its objects.
fn is_namespaced(kind: &Kind, objects: Option<&ByName>) -> bool {
    context::is_cluster_scoped(&kind.api_version, &kind.kind).map_or_else(
        || objects.is_none_or(|objects| objects.keys().any(|(namespace, _)| !namespace.is_empty())),
        |is_cluster_scoped| !is_cluster_scoped,
    )
}

fn list(objects: Option<&ByName>, namespace: Option<&str>) -> Vec<Arc<Value>> {
    let objects = objects.into_iter().flatten();
    let selected = objects.filter(|((of, _), _)| namespace.is_none_or(|namespace| namespace == of));
    selected.map(|(_, object)| Arc::clone(object)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(kind: &str, namespace: Option<&str>, name: &str) -> Value {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        object
    }

    #[test]
    fn objects_without_a_namespace_are_in_the_default_namespace() {
        let folder = FolderObjects::default();
        let pod = Kind::new("v1", "Pod");
        folder.replace([object("Pod", None, "a"), object("Pod", Some("b"), "a"), object("Namespace", None, "b")]);
        assert!(folder.get(&pod, "default", "a").is_some() && folder.get(&pod, "", "a").is_none());
        assert_eq!((folder.list(&pod, None).len(), folder.list(&pod, Some("b")).len()), (2, 1));
        assert!(folder.get(&Kind::namespace(), "", "b").is_some());
        assert!(folder.is_namespaced(&pod) && !folder.is_namespaced(&Kind::namespace()));
        let (_, all) = folder.all(&pod, None);
        assert_eq!((all.plural.as_str(), all.is_namespaced, all.objects.len()), ("pods", true, 2));
    }

    #[test]
    fn the_version_changes_only_with_the_objects() {
        let folder = FolderObjects::default();
        folder.replace([object("Pod", None, "a")]);
        let (version, before) = (folder.version(), folder.list(&Kind::new("v1", "Pod"), None));
        folder.replace([object("Pod", None, "a")]);
        assert!(folder.version() == version && Arc::ptr_eq(&before[0], &folder.list(&Kind::new("v1", "Pod"), None)[0]));
        folder.replace([object("Pod", None, "b")]);
        assert!(folder.version() != version);
    }
}
