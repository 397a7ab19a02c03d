//! Compares an object with what is to be applied: an apply that would change nothing is left out.

use serde_json::Value;

/// Returns whether `found` is as `wanted` asks for: to apply `wanted` would change nothing. `wanted` has to name every field that
/// the API server would fill in: a field that only `found` has may come from somebody else, and counts as a difference. Labels and
/// annotations of others are left alone, as an apply does.
pub(super) fn is_applied(wanted: &Value, found: &Value) -> bool {
    let fields = wanted.as_object().into_iter().flatten();
    fields.into_iter().all(|(key, wanted)| match key.as_str() {
        "apiVersion" | "kind" => true,
        "metadata" => ["labels", "annotations"].into_iter().all(|map| has_all(&wanted[map], &found["metadata"][map])),
        _ => is_same(wanted, &found[key]),
    })
}

fn has_all(wanted: &Value, found: &Value) -> bool {
    wanted.as_object().into_iter().flatten().all(|(key, value)| found.get(key) == Some(value))
}

/// Returns whether two values are the same. The API server leaves out lists and objects that are empty.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let has = |a: &serde_json::Map<String, Value>, b: &serde_json::Map<String, Value>| {
                a.iter().all(|(key, value)| is_same(value, b.get(key).unwrap_or(&Value::Null)))
            };
            has(a, b) && has(b, a)
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (Value::Null, other) | (other, Value::Null) => is_empty(other),
        _ => a == b,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_apply_is_left_out_only_where_it_changes_nothing() {
        let wanted = json!({
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "a", "labels": {"l": "1"}},
            "webhooks": [{
                "name": "w", "objectSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}, "rules": [{"scope": "*"}],
            }],
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
            (but("/kind", Value::Null), true),
            (but("/metadata/resourceVersion", json!("7")), true),
            (but("/metadata/labels/other", json!("2")), true),
            (but("/webhooks/0/namespaceSelector", Value::Null), true),
            (but("/webhooks/0/matchConditions", json!([])), true),
            (but("/metadata/labels/l", json!("2")), false),
            (but("/metadata/labels", Value::Null), false),
            (but("/webhooks/0/timeoutSeconds", json!(10)), false),
            (but("/webhooks/-", json!({"name": "x"})), false),
            (but("/webhooks/0/rules", json!([{}, {}])), false),
            (but("/webhooks/0/rules/0/scope", json!("Namespaced")), false),
            (but("/webhooks/0/rules/0/resources", json!(["pods"])), false),
            (but("/webhooks/0/objectSelector/matchLabels/c", json!("d")), false),
            (but("/webhooks/0/objectSelector", Value::Null), false),
            (but("/webhooks/0/namespaceSelector", json!({"matchExpressions": [{"key": "k"}]})), false),
            (but("/webhooks", Value::Null), false),
        ] {
            assert_eq!(is_applied(&wanted, &found), expected, "{found}");
        }
    }
}
