//! Objects and patches that expressions construct: `Object{spec: Object.spec{…}}` and `JSONPatch{op: …}`. The interpreter
//! represents them as maps with an additional key for the type.

use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr, StructExpr};

/// The key that distinguishes a constructed object from a map. No field has this name.
pub(super) const TYPE: &str = "@type";
pub(super) const OBJECT: &str = "Object";
pub(super) const PATCH: &str = "JSONPatch";
const PATCH_FIELDS: &[&str] = &["op", "path", "from", "value"];

/// Checks that the type and its fields exist, and that objects in fields have the type of the field.
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

/// Returns the map that represents a constructed object.
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

/// Removes the type keys from a value: they are not fields. A key `@type` with any other value stays, because objects with
/// Envoy configuration have such keys. The recursion is bounded: an expression cannot construct deep objects.
pub(super) fn remove_types(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(remove_types),
        serde_json::Value::Object(members) => {
            let is_type = |name: &str| name == OBJECT || name == PATCH || name.starts_with("Object.");
            if members.get(TYPE).and_then(serde_json::Value::as_str).is_some_and(is_type) {
                members.remove(TYPE);
            }
            members.values_mut().for_each(remove_types);
        }
        _ => {}
    }
}
