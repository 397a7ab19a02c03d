//! `data.inventory`: the objects of the cluster as Gatekeeper shows them, `cluster[apiVersion][kind][name]` and
//! `namespace[namespace][apiVersion][kind][name]`. Made anew only when the host says that an object has changed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use regorus::{Engine, Value};
use serde::Deserialize;
use serde_json::Value as Json;

use super::contract::Ask;
use super::inspect::INVENTORY;
use super::value::Plain;
use crate::EvaluationError;
use crate::host::Objects;
use crate::patch::{MAX_NESTING, is_deeper_than};

/// The last inventory that was made.
#[derive(Default)]
pub(super) struct Inventory(Mutex<Option<Made>>);

struct Made {
    objects: Arc<Objects>,
    /// With the inventory in its data.
    engine: Engine,
    /// By the address of the object, which the object keeps: one that has not changed is not read again.
    values: HashMap<usize, Value>,
}

/// What there is before any object is known.
pub(super) fn empty() -> Value {
    document(Tree::default())
}

impl Inventory {
    /// An engine that has the objects.
    pub(super) fn engine(
        &self,
        plain: &Engine,
        asks: &[Ask],
        objects: Arc<Objects>,
    ) -> Result<Engine, EvaluationError> {
        // Made under the lock: who comes at the same time needs the same.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = last.as_ref().filter(|made| Arc::ptr_eq(&made.objects, &objects)) {
            return Ok(made.engine.clone());
        }
        let made = Made::new(plain, asks, objects, last.as_ref())?;
        let engine = made.engine.clone();
        *last = Some(made);
        Ok(engine)
    }
}

impl Made {
    fn new(plain: &Engine, asks: &[Ask], objects: Arc<Objects>, last: Option<&Self>) -> Result<Self, EvaluationError> {
        let known = last.map(|made| &made.values);
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
        let mut engine = plain.clone();
        engine.clear_data();
        engine.add_data(document(tree)).map_err(|error| failed(error.to_string()))?;
        for ask in asks {
            // Prepares it anew, so that no evaluation has to.
            engine.compile_with_entrypoint(&ask.rule().into()).map_err(|error| failed(error.to_string()))?;
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
