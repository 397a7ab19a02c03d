//! Whether an apply would change anything.

use serde_json::Value;

/// Returns whether `found` has everything that `wanted` asks for: to apply it again would change nothing. Fields that `wanted`
/// leaves out may have any value, such as a default of the API server. Lists have to be of the same length, and label selectors
/// have to be equal: one more label selects other objects.
pub(crate) fn is_applied(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Null, _) => true,
        (Value::Object(wanted), Value::Object(found)) => wanted.iter().all(|(key, wanted)| {
            let found = found.get(key).unwrap_or(&Value::Null);
            if key.ends_with("Selector") { is_same(wanted, found) } else { is_applied(wanted, found) }
        }),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(wanted, found)| is_applied(wanted, found))
        }
        // An empty list or object is left out of what the API server sends.
        (Value::Array(wanted), Value::Null) => wanted.is_empty(),
        (Value::Object(wanted), Value::Null) => wanted.is_empty(),
        _ => wanted == found,
    }
}

/// Whether two selectors are the same, wherever one of them leaves out what the other has as `null`, `[]` or `{}`.
fn is_same(a: &Value, b: &Value) -> bool {
    is_applied(a, b) && is_applied(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_apply_is_left_out_only_where_it_changes_nothing() {
        let wanted = json!({
            "metadata": {"name": "a", "labels": {"l": "1"}},
            "webhooks": [{"name": "w", "objectSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}, "rules": []}],
        });
        let but = |pointer: &str, value: Value| {
            let mut found = wanted.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match found.pointer_mut(parent).unwrap() {
                Value::Array(items) if key == "-" => items.push(value),
                parent => parent[key] = value,
            }
            found
        };
        for (found, expected) in [
            (wanted.clone(), true),
            (but("/metadata/resourceVersion", json!("7")), true),
            (but("/metadata/labels/other", json!("2")), true),
            (but("/webhooks/0/timeoutSeconds", json!(10)), true),
            (but("/webhooks/0/namespaceSelector", Value::Null), true),
            (but("/webhooks/0/rules", Value::Null), true),
            (but("/metadata/labels/l", json!("2")), false),
            (but("/webhooks/-", json!({"name": "x"})), false),
            (but("/webhooks/0/rules", json!([{}])), false),
            (but("/webhooks/0/objectSelector/matchLabels/c", json!("d")), false),
            (but("/webhooks/0/objectSelector", Value::Null), false),
            (but("/webhooks/0/namespaceSelector", json!({"matchExpressions": [{"key": "k"}]})), false),
            (but("/webhooks", Value::Null), false),
        ] {
            assert_eq!(is_applied(&wanted, &found), expected, "{found}");
        }
    }
}
