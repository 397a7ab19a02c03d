//! Comparison of a desired object with the object in the cluster, to skip an apply that would change nothing.

use serde_json::Value;

/// Returns whether `found` already is as `desired`, so that an apply would change nothing. `desired` has to name
/// every field that the API server would default: a field that only `found` has may come from another writer, and
/// counts as a difference. Labels and annotations of other writers are ignored, as server-side apply does.
pub(super) fn is_applied(desired: &Value, found: &Value) -> bool {
    let fields = desired.as_object().into_iter().flatten();
    fields.into_iter().all(|(key, desired)| match key.as_str() {
        "apiVersion" | "kind" => true,
        "metadata" => ["labels", "annotations"].into_iter().all(|map| has_all(&desired[map], &found["metadata"][map])),
        _ => is_same(desired, &found[key]),
    })
}

fn has_all(desired: &Value, found: &Value) -> bool {
    desired.as_object().into_iter().flatten().all(|(key, value)| found.get(key) == Some(value))
}

/// Returns whether two values are equal. A missing value equals an empty one, because the API server omits empty
/// lists and objects.
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
    fn is_applied_is_true_only_if_an_apply_changes_nothing() {
        let desired = json!({
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "a", "labels": {"l": "1"}},
            "webhooks": [{
                "name": "w", "objectSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}, "rules": [{"scope": "*"}],
            }],
        });
        let but = |pointer: &str, value: Value| {
            let mut found = desired.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match found.pointer_mut(parent).unwrap() {
                Value::Array(items) if key == "-" => items.push(value),
                parent => parent[key] = value,
            }
            found
        };
        for (found, expected) in [
            (desired.clone(), true),
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
            assert_eq!(is_applied(&desired, &found), expected, "{found}");
        }
    }
}
