//! The objects that a Gatekeeper template sees in `data.inventory`.

use std::collections::BTreeMap;
use std::sync::Arc;

use proviso_engines::Program;
use proviso_engines::host::{FixedObjects, Objects, Resource};
use serde_json::Value;

use crate::plural::plural;

/// Returns the program with `objects` in `data.inventory` and as `namespaceObject`.
#[must_use]
pub(crate) fn with_inventory(program: &Program, objects: &[Value]) -> Program {
    program.clone().with_host(Arc::new(FixedObjects(Arc::new(group_by_kind(objects)))))
}

/// Groups objects by their kind, as Gatekeeper does. An object without `metadata.namespace` is cluster-scoped.
fn group_by_kind(objects: &[Value]) -> Objects {
    let mut kinds = BTreeMap::<_, Vec<_>>::new();
    for object in objects {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let is_namespaced = object["metadata"]["namespace"].is_string();
        let kind = (text(&object["apiVersion"]), text(&object["kind"]), is_namespaced);
        kinds.entry(kind).or_default().push(Arc::new(object.clone()));
    }
    let resource = |((api_version, kind, is_namespaced), objects): ((String, String, bool), _)| Resource {
        plural: plural(&kind),
        api_version,
        kind,
        is_namespaced,
        objects,
    };
    Objects { resources: kinds.into_iter().map(resource).collect() }
}
