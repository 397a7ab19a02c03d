//! Applies the value of a mutation's expression to the object.

mod merge;

use cel::Value;
use cel::objects::{Key, Map};
use serde_json::json;

use super::source::PatchType;
use super::{construct, json};
use crate::patch::{self, MAX_NESTING, is_deeper_than};

/// Applies `value` to the object: an object to merge, or a list of patch operations. After an error the object may be changed in
/// part.
pub(super) fn apply(patch_type: PatchType, value: &Value, object: &mut serde_json::Value) -> Result<(), String> {
    match patch_type {
        PatchType::ApplyConfiguration => {
            let is_object = matches!(value, Value::Map(map) if has_type(map, construct::OBJECT));
            if !is_object {
                return Err(format!("the value is a {}, not an Object{{…}}", value.type_of()));
            }
            let mut partial = json::write(value)?;
            construct::remove_types(&mut partial);
            merge::merge(object, partial)?;
            if is_deeper_than(object, MAX_NESTING) {
                return Err(format!("the object would be nested deeper than {MAX_NESTING} levels"));
            }
            Ok(())
        }
        PatchType::JsonPatch => {
            let Value::List(items) = value else {
                return Err(format!("the value is a {}, not a list of JSONPatch{{…}}", value.type_of()));
            };
            let operations = items.iter().map(operation).collect::<Result<Vec<_>, _>>()?;
            let operations: json_patch::Patch = serde_json::from_value(operations.into())
                .map_err(|error| format!("the patch is not valid: {error}"))?;
            patch::apply(object, &operations).map_err(|error| format!("the patch does not apply: {error}"))
        }
    }
}

/// Returns true if a map is a constructed object of this type.
fn has_type(map: &Map, name: &str) -> bool {
    matches!(field(map, construct::TYPE), Some(Value::String(found)) if found.as_str() == name)
}

fn field<'a>(map: &'a Map, name: &str) -> Option<&'a Value> {
    map.map.get(&Key::from(name))
}

fn operation(item: &Value) -> Result<serde_json::Value, String> {
    let Value::Map(map) = item else { return Err(format!("an item is a {}, not a JSONPatch{{…}}", item.type_of())) };
    if !has_type(map, construct::PATCH) {
        return Err("an item is a map, not a JSONPatch{…}".to_owned());
    }
    let text = |name: &str| match field(map, name) {
        Some(Value::String(text)) => Ok(Some(text.as_str().to_owned())),
        Some(other) => Err(format!("the field {name} of a JSONPatch is a {}, not a string", other.type_of())),
        None => Ok(None),
    };
    let (op, path, from) = (text("op")?, text("path")?, text("from")?);
    let (Some(op), Some(path)) = (op, path) else { return Err("a JSONPatch needs `op` and `path`".to_owned()) };
    let mut value = field(map, "value").map(json::write).transpose()?;
    if let Some(value) = &mut value {
        construct::remove_types(value);
    }
    Ok(match op.as_str() {
        "move" | "copy" => json!({"op": op, "path": path, "from": from.ok_or("a JSONPatch of this op needs `from`")?}),
        "remove" => json!({"op": op, "path": path}),
        _ => json!({"op": op, "path": path, "value": value}),
    })
}
