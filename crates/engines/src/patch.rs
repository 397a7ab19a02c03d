//! Applies JSON Patches under limits. Repeated `copy` operations grow an object exponentially or nest it deeply, and all code
//! that reads, writes or drops a value is recursive: a stack overflow would end the process.

use json_patch::PatchOperation;
use serde_json::Value;

/// The maximum nesting depth of an object, the same as that of a request.
pub(crate) const MAX_NESTING: usize = proviso_core::review::MAX_NESTING;
/// The maximum number of values that the `copy` and `move` operations of a patch add in total. A long string counts as several
/// values.
const MAX_COPIED: usize = 100_000;
/// The number of bytes of a string that count as one more value.
const BYTES_PER_VALUE: usize = 64;

/// Applies a patch. After an error the object is unusable. A value that is nested too deeply is never built, because even
/// dropping it could overflow the stack.
pub(crate) fn apply(object: &mut Value, operations: &[PatchOperation]) -> Result<(), String> {
    let mut copied = 0;
    for (index, operation) in operations.iter().enumerate() {
        let path = operation.path().as_str();
        let failed = |why: &str| format!("operation '/{index}' failed at path '{path}': {why}");
        let from = match operation {
            PatchOperation::Copy(copy) => Some(&copy.from),
            PatchOperation::Move(moved) => Some(&moved.from),
            _ => None,
        };
        let value = match operation {
            PatchOperation::Add(add) => Some(&add.value),
            PatchOperation::Replace(replace) => Some(&replace.value),
            _ => match from {
                Some(from) => {
                    let value = object.pointer(from.as_str()).ok_or_else(|| failed("\"from\" path is invalid"))?;
                    copied += count_values(value, MAX_COPIED);
                    Some(value)
                }
                None => None,
            },
        };
        if copied > MAX_COPIED {
            return Err(failed(&format!("`copy` and `move` add more than {MAX_COPIED} values")));
        }
        let depth_left = MAX_NESTING.checked_sub(path.matches('/').count());
        if value.is_some_and(|value| depth_left.is_none_or(|limit| is_deeper_than(value, limit))) {
            return Err(failed(&format!("the object would be nested deeper than {MAX_NESTING} levels")));
        }
        json_patch::patch_unsafe(object, std::slice::from_ref(operation))
            .map_err(|error| failed(&error.kind.to_string()))?;
    }
    Ok(())
}

/// Returns true if a value is nested deeper than `limit`. Iterative, because recursion into a deep value could overflow the
/// stack.
pub(crate) fn is_deeper_than(value: &Value, limit: usize) -> bool {
    let mut pending = vec![(value, 0)];
    while let Some((value, depth)) = pending.pop() {
        if depth > limit {
            return true;
        }
        match value {
            Value::Array(items) => pending.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => pending.extend(members.values().map(|member| (member, depth + 1))),
            _ => {}
        }
    }
    false
}

/// Returns the number of values in a value. Stops counting soon after `limit`.
fn count_values(value: &Value, limit: usize) -> usize {
    let mut counted = 0;
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        counted += 1;
        match value {
            Value::String(text) => counted += text.len() / BYTES_PER_VALUE,
            Value::Array(items) => pending.extend(items),
            Value::Object(members) => {
                counted += members.keys().map(|key| key.len() / BYTES_PER_VALUE).sum::<usize>();
                pending.extend(members.values());
            }
            _ => {}
        }
        if counted > limit {
            break;
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn copies(count: usize, copy: impl Fn(usize) -> Value) -> Vec<PatchOperation> {
        let operations = (0..count).map(copy).collect::<Vec<_>>();
        serde_json::from_value(operations.into()).unwrap()
    }

    #[test]
    fn patches_that_exceed_the_limits_do_not_apply() {
        let nest = |_| json!({"op": "copy", "from": "/a", "path": "/a/a"});
        let double = |index| json!({"op": "copy", "from": "/a", "path": format!("/a/b{index}")});
        let long = |index| json!({"op": "copy", "from": "/long", "path": format!("/b{index}")});
        let deeper = |index: usize| json!({"op": "copy", "from": "/deep", "path": format!("/deep{}/x", "/d".repeat(150 + index))});
        let deep = (0..150).fold(json!({}), |inner, _| json!({"d": inner}));
        for (name, patch, part) in [
            ("nesting", copies(300, nest), "nested deeper than"),
            ("doubling", copies(40, double), "add more than"),
            ("long strings", copies(40, long), "add more than"),
            ("a long path", copies(1, deeper), "nested deeper than"),
        ] {
            let mut object = json!({"a": {}, "long": "x".repeat(1 << 20), "deep": deep});
            let error = apply(&mut object, &patch).unwrap_err();
            assert!(error.contains(part), "{name}: {error}");
        }
        let mut object = json!({"a": {"b": 1}});
        let patch = [
            json!({"op": "copy", "from": "/a", "path": "/c"}),
            json!({"op": "move", "from": "/a", "path": "/d"}),
            json!({"op": "replace", "path": "/c/b", "value": 2}),
        ];
        apply(&mut object, &copies(3, |index| patch[index].clone())).unwrap();
        assert_eq!(object, json!({"c": {"b": 2}, "d": {"b": 1}}));
    }
}
