//! `json.patch`. Each `copy` may double the size of the document, so that the document is measured after each copy.

use regorus::Value;

use super::call::call;
use super::limits::MAX_ELEMENTS;
use super::size::parts;

pub(super) fn patch(values: &[Value]) -> Result<Value, String> {
    let mut left = MAX_ELEMENTS;
    let mut spend = |value: &Value| {
        let parts = parts(value, left);
        left = left.checked_sub(parts).ok_or("the document is too large, or copied too often")?;
        Ok::<_, String>(())
    };
    values.iter().try_for_each(&mut spend)?;
    let [document, Value::Array(operations)] = values else { return call("json.patch", values) };
    let operations: Vec<Value> = operations.iter().cloned().collect();
    if !operations.iter().any(is_copy) {
        return call("json.patch", values);
    }
    let mut document = document.clone();
    for some in operations.split_inclusive(is_copy) {
        document = call("json.patch", &[document, some.to_vec().into()])?;
        if document == Value::Undefined {
            break;
        }
        spend(&document)?;
    }
    Ok(document)
}

fn is_copy(operation: &Value) -> bool {
    let Value::Object(members) = operation else { return false };
    members.get(&"op".into()) == Some(&"copy".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rego::value::read;

    fn patched(document: &str, operations: &str) -> Result<String, String> {
        let document = read(document).unwrap();
        patch(&[document, read(operations).unwrap()]).map(|value| value.to_string())
    }

    #[test]
    fn a_patch_applies_completely_or_not_at_all() {
        let copies = r#"[
            {"op": "add", "path": "/b", "value": [1]}, {"op": "copy", "from": "/b", "path": "/c"},
            {"op": "replace", "path": "/b/0", "value": 2}, {"op": "copy", "from": "/b", "path": "/a"},
            {"op": "remove", "path": "/b"}]"#;
        assert_eq!(patched(r#"{"a": 0}"#, copies).unwrap(), r#"{"a":[2],"c":[1]}"#);
        let undefined = Value::Undefined.to_string();
        let wrong = copies.replace(r#""from": "/b", "path": "/a""#, r#""from": "/x", "path": "/a""#);
        assert_eq!(patched(r#"{"a": 0}"#, &wrong).unwrap(), undefined);
        assert_eq!(patched("1", "{}").unwrap(), undefined);
    }

    #[test]
    fn documents_that_copies_make_too_large_are_refused() {
        let doubling: Vec<String> =
            (0..60).map(|index| format!(r#"{{"op": "copy", "from": "", "path": "/{index}"}}"#)).collect();
        let error = patched("{}", &format!("[{}]", doubling.join(","))).unwrap_err();
        assert!(error.contains("copied too often"), "{error}");
        // A shared part is counted as often as it occurs.
        let shared = (0..60).fold(Value::from(1), |value, _| vec![value.clone(), value].into());
        let error = patch(&[shared, read(r#"[{"op": "add", "path": "/-", "value": 1}]"#).unwrap()]).unwrap_err();
        assert!(error.contains("too large"), "{error}");
    }
}
