//! Objects and patches that expressions make: `Object{spec: Object.spec{…}}` and `JSONPatch{op: …}`. To the interpreter
//! they are maps, with their type beside their fields.

use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr, StructExpr};

/// The key that tells such a map from one that is written as a map. No field has this name.
pub(super) const TYPE: &str = "@type";
pub(super) const OBJECT: &str = "Object";
pub(super) const PATCH: &str = "JSONPatch";
const PATCH_FIELDS: &[&str] = &["op", "path", "from", "value"];

/// Whether the type and its fields are there, and objects in fields are of the type that belongs there.
pub(super) fn check(value: &StructExpr) -> Result<(), String> {
    let name = value.type_name.as_str();
    let fields = value.entries.iter().filter_map(|entry| match &entry.expr {
        EntryExpr::StructField(field) => Some(field),
        EntryExpr::MapEntry(_) => None,
    });
    if name == PATCH {
        let unknown = fields.map(|field| field.field.as_str()).find(|field| !PATCH_FIELDS.contains(field));
        return match unknown {
            Some(field) => Err(format!("JSONPatch has no field {field}, only {}", PATCH_FIELDS.join(", "))),
            None => Ok(()),
        };
    }
    if name != OBJECT && !name.starts_with("Object.") {
        return Err(format!("there is no type {name}, only Object, Object.<field> and JSONPatch"));
    }
    for field in fields {
        let inner = match &field.value.expr {
            Expr::List(list) => list.elements.iter().collect(),
            _ => vec![&field.value],
        };
        for part in inner {
            if let Expr::Struct(inner) = &part.expr {
                let wanted = format!("{name}.{}", field.field);
                if inner.type_name != wanted {
                    return Err(format!("the field {} is of type {wanted}, not {}", field.field, inner.type_name));
                }
            }
        }
    }
    Ok(())
}

/// The map that stands for it.
pub(super) fn as_map(value: &mut StructExpr, id: u64) -> Expr {
    let text = |text: &str| IdedExpr { id, expr: Expr::Literal(LiteralValue::String(text.to_owned().into())) };
    let entry = |key: &str, value: IdedExpr, optional: bool| IdedEntryExpr {
        id,
        expr: EntryExpr::MapEntry(MapEntryExpr { key: text(key), value, optional }),
    };
    let mut entries = vec![entry(TYPE, text(&value.type_name), false)];
    for IdedEntryExpr { expr, .. } in std::mem::take(&mut value.entries) {
        if let EntryExpr::StructField(field) = expr {
            entries.push(entry(&field.field, field.value, field.optional));
        }
    }
    Expr::Map(MapExpr { entries })
}

/// Takes the types out of what is written: they are no fields. A key of the same name that somebody wrote stays: objects
/// that hold configuration of Envoy have it. Recursive: an expression makes no deep objects.
pub(super) fn unmark(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(unmark),
        serde_json::Value::Object(members) => {
            let is_type = |name: &str| name == OBJECT || name == PATCH || name.starts_with("Object.");
            if members.get(TYPE).and_then(serde_json::Value::as_str).is_some_and(is_type) {
                members.remove(TYPE);
            }
            members.values_mut().for_each(unmark);
        }
        _ => {}
    }
}
