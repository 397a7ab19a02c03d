//! About how much memory a JSON value takes.

use serde_json::Value;

/// What one entry of a map takes beside its key and value: its share of the nodes.
const ENTRY: usize = 32;

/// In bytes, the value itself included.
pub(super) fn weight(value: &Value) -> usize {
    let own = size_of::<Value>();
    own + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.capacity(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| ENTRY + size_of::<String>() + name.capacity() + weight(value))
            .sum::<usize>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn large_values_are_heavy_wherever_they_stand() {
        let text = "x".repeat(1000);
        for value in [json!(text), json!([text]), json!({"a": {"b": text}}), json!({text.clone(): 1})] {
            let weight = weight(&value);
            assert!((1000..1500).contains(&weight), "{weight}");
        }
        assert!(weight(&json!(vec![0; 1000])) >= 1000 * size_of::<Value>());
    }
}
