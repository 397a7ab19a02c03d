//! `data.inventory`: the objects of the cluster in Gatekeeper's layout, `cluster[apiVersion][kind][name]` and
//! `namespace[namespace][apiVersion][kind][name]`. The document is built again only after an object has changed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use regorus::{Engine, Value};
use serde::Deserialize;
use serde_json::Value as Json;

use super::evaluated_rules::Entrypoint;
use super::inspect::INVENTORY;
use super::value::Plain;
use crate::EvaluationError;
use crate::host::Objects;
use crate::patch::{MAX_NESTING, is_deeper_than};

/// A cache of the latest inventory.
#[derive(Default)]
pub(super) struct Inventory(Mutex<Option<Snapshot>>);

/// The inventory for one state of the objects.
struct Snapshot {
    objects: Arc<Objects>,
    /// An engine with the inventory in its data.
    engine: Engine,
    /// The converted objects, by the address of their `Arc`. `objects` keeps the addresses valid. The next snapshot reuses the
    /// values of the objects that have not changed.
    values: HashMap<usize, Value>,
}

/// Returns a document with an empty inventory, for a policy without a host.
pub(super) fn empty() -> Value {
    document(Tree::default())
}

impl Inventory {
    /// Returns an engine whose data contains the objects. `base` is the engine without them.
    pub(super) fn engine(
        &self,
        base: &Engine,
        entrypoints: &[Entrypoint],
        objects: Arc<Objects>,
    ) -> Result<Engine, EvaluationError> {
        // The lock is held while the snapshot is built: concurrent evaluations need the same snapshot.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(snapshot) = last.as_ref().filter(|snapshot| Arc::ptr_eq(&snapshot.objects, &objects)) {
            return Ok(snapshot.engine.clone());
        }
        let snapshot = Snapshot::new(base, entrypoints, objects, last.as_ref())?;
        let engine = snapshot.engine.clone();
        *last = Some(snapshot);
        Ok(engine)
    }
}

impl Snapshot {
    fn new(
        base: &Engine,
        entrypoints: &[Entrypoint],
        objects: Arc<Objects>,
        last: Option<&Self>,
    ) -> Result<Self, EvaluationError> {
        let known = last.map(|snapshot| &snapshot.values);
        let mut values = HashMap::new();
        let mut tree = Tree::default();
        for resource in &objects.resources {
            for object in &resource.objects {
                let address = Arc::as_ptr(object).addr();
                let value = match known.and_then(|known| known.get(&address)) {
                    Some(value) => value.clone(),
                    None => read(object)?,
                };
                values.insert(address, value.clone());
                let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
                let by_version = match text("namespace") {
                    "" => &mut tree.cluster,
                    namespace => tree.namespaces.entry(namespace.into()).or_default(),
                };
                let by_kind = by_version.entry(resource.api_version.as_str().into()).or_default();
                by_kind.entry(resource.kind.as_str().into()).or_default().insert(text("name").into(), value);
            }
        }
        let failed = |error: String| EvaluationError::Failed(format!("data.inventory: {error}"));
        let mut engine = base.clone();
        engine.clear_data();
        engine.add_data(document(tree)).map_err(|error| failed(error.to_string()))?;
        for entrypoint in entrypoints {
            // `add_data` discards the prepared state. Without this call, each evaluation would prepare its own clone.
            engine.compile_with_entrypoint(&entrypoint.rule().into()).map_err(|error| failed(error.to_string()))?;
        }
        Ok(Self { objects, engine, values })
    }
}

type ByVersion = BTreeMap<Value, BTreeMap<Value, BTreeMap<Value, Value>>>;

#[derive(Default)]
struct Tree {
    cluster: ByVersion,
    namespaces: BTreeMap<Value, ByVersion>,
}

fn document(tree: Tree) -> Value {
    let of_versions = |versions: ByVersion| -> Value {
        let of_kinds = |kinds: BTreeMap<Value, BTreeMap<Value, Value>>| -> Value {
            kinds.into_iter().map(|(kind, names)| (kind, Value::from(names))).collect::<BTreeMap<_, _>>().into()
        };
        versions.into_iter().map(|(version, kinds)| (version, of_kinds(kinds))).collect::<BTreeMap<_, _>>().into()
    };
    let namespaces: BTreeMap<Value, Value> =
        tree.namespaces.into_iter().map(|(namespace, versions)| (namespace, of_versions(versions))).collect();
    let inventory = BTreeMap::from([
        (Value::from("cluster"), of_versions(tree.cluster)),
        (Value::from("namespace"), Value::from(namespaces)),
    ]);
    BTreeMap::from([(Value::from(INVENTORY), Value::from(inventory))]).into()
}

fn read(object: &Json) -> Result<Value, EvaluationError> {
    let failed = |why: &str| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        EvaluationError::Failed(format!("data.inventory: the object {name} in namespace {namespace:?} {why}"))
    };
    if is_deeper_than(object, MAX_NESTING) {
        return Err(failed("is nested too deep"));
    }
    Plain::deserialize(object).map(|value| value.0).map_err(|error| failed(&error.to_string()))
}
