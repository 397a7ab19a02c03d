//! Applies the merge patch (RFC 7396) of a policy.

use serde_json::{Map, Value};

use super::path::FieldPath;

/// Returns the fields whose value a merge patch changes: fields that it sets to another value, and fields that it removes.
pub(super) fn changed_fields(payload: &Value, patch: &Map<String, Value>) -> Vec<FieldPath> {
    let mut fields = Vec::new();
    collect(Some(payload), patch, &mut FieldPath::root(), &mut fields);
    fields
}

fn collect(before: Option<&Value>, patch: &Map<String, Value>, at: &mut FieldPath, fields: &mut Vec<FieldPath>) {
    let members = before.and_then(Value::as_object);
    for (key, value) in patch {
        let old = members.and_then(|members| members.get(key));
        at.push(key);
        match (value, old) {
            (Value::Null, None) => {}
            (Value::Object(patch), Some(Value::Object(_))) => collect(old, patch, at, fields),
            (Value::Object(patch), None) => {
                let found = fields.len();
                collect(None, patch, at, fields);
                // The object itself is new, even if its patch only removes members.
                if fields.len() == found {
                    fields.push(at.clone());
                }
            }
            (value, Some(old)) if value == old => {}
            _ => fields.push(at.clone()),
        }
        at.pop();
    }
}
