//! The approximate memory size of a JSON value.

use serde_json::Value;

/// The memory of a map entry besides its key and value, in bytes: its part of the tree nodes.
const ENTRY_OVERHEAD: usize = 32;

/// Returns the approximate size of a value in bytes, including the value itself.
pub(super) fn weight(value: &Value) -> usize {
    let own = size_of::<Value>();
    own + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.capacity(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| ENTRY_OVERHEAD + size_of::<String>() + name.capacity() + weight(value))
            .sum::<usize>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn large_strings_count_at_any_depth_and_in_keys() {
        let text = "x".repeat(1000);
        for value in [json!(text), json!([text]), json!({"a": {"b": text}}), json!({text.clone(): 1})] {
            let weight = weight(&value);
            assert!((1000..1500).contains(&weight), "{weight}");
        }
        assert!(weight(&json!(vec![0; 1000])) >= 1000 * size_of::<Value>());
    }
}
