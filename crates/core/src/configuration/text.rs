//! JSON texts: the canonical text of a value, and lists of texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Returns the compact JSON of a value with sorted keys; `None` if objects and lists are nested more than `depth` levels deep. The
/// order in `serde_json` depends on the features of the build, and a digest must not.
pub(super) fn canonical(value: &Value, depth: usize) -> Option<String> {
    let mut text = String::new();
    write(value, depth, &mut text).then_some(text)
}

fn write(value: &Value, depth: usize, text: &mut String) -> bool {
    let Some(below) = depth.checked_sub(1) else {
        let is_scalar = !value.is_object() && !value.is_array();
        push_scalar(value, text);
        return is_scalar;
    };
    match value {
        Value::Array(list) => {
            text.push('[');
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                if !write(element, below, text) {
                    return false;
                }
            }
            text.push(']');
        }
        Value::Object(members) => {
            text.push('{');
            let members: BTreeMap<_, _> = members.iter().collect();
            for (index, (key, member)) in members.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&quoted(key));
                text.push(':');
                if !write(member, below, text) {
                    return false;
                }
            }
            text.push('}');
        }
        scalar => push_scalar(scalar, text),
    }
    true
}

/// Appends a string, a number, a boolean or null. Objects and lists are left out.
fn push_scalar(value: &Value, text: &mut String) {
    match value {
        Value::String(value) => text.push_str(&quoted(value)),
        Value::Array(_) | Value::Object(_) => {}
        // Writing to a string does not fail.
        other => _ = write!(text, "{other}"),
    }
}

/// Returns a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns the JSON list of these texts, which are JSON.
pub(super) fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    format!("[{}]", texts.into_iter().collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn canonical_json_has_sorted_keys_and_no_spaces() {
        let value: Value =
            serde_json::from_str(r#"{ "b": [1, 2.5, {}], "a": { "ü\n": null, "\"": true }, "A": [] }"#).unwrap();
        assert_eq!(canonical(&value, 3).unwrap(), r#"{"A":[],"a":{"\"":true,"ü\n":null},"b":[1,2.5,{}]}"#);
        assert_eq!(canonical(&json!("x"), 0).unwrap(), r#""x""#);
    }

    #[test]
    fn a_value_that_is_too_deep_has_no_canonical_json() {
        assert_eq!(canonical(&json!([[1]]), 2).as_deref(), Some("[[1]]"));
        assert_eq!(canonical(&json!([[1, [2]]]), 2), None);
        assert_eq!(canonical(&json!([{}]), 1), None);
        assert_eq!(canonical(&json!({}), 0), None);
    }
}
