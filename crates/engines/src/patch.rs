//! JSON Patches applied under limits: `copy` doubles and nests what is there, and everything that reads, writes or drops a
//! value is recursive. A stack overflow would end the process.

use json_patch::PatchOperation;
use serde_json::Value;

/// How deep an object may be nested: as deep as a request.
pub(crate) const MAX_NESTING: usize = proviso_core::review::MAX_NESTING;
/// The most values that `copy` and `move` bring, all together; a long text counts as several.
const MAX_BROUGHT: usize = 100_000;
/// Bytes of a text that count as one more value.
const TEXT: usize = 64;

/// Applies a patch. After an error the object is of no use. What is too deep is never made, not even to be dropped.
pub(crate) fn apply(object: &mut Value, patch: &[PatchOperation]) -> Result<(), String> {
    let mut brought = 0;
    for (index, operation) in patch.iter().enumerate() {
        let place = operation.path().as_str();
        let within = |why: &str| format!("operation '/{index}' failed at path '{place}': {why}");
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
                    let value = object.pointer(from.as_str()).ok_or_else(|| within("\"from\" path is invalid"))?;
                    brought += count(value, MAX_BROUGHT);
                    Some(value)
                }
                None => None,
            },
        };
        if brought > MAX_BROUGHT {
            return Err(within(&format!("`copy` and `move` bring more than {MAX_BROUGHT} values")));
        }
        let room = MAX_NESTING.checked_sub(place.matches('/').count());
        if value.is_some_and(|value| room.is_none_or(|room| is_deeper_than(value, room))) {
            return Err(within(&format!("the object would be nested deeper than {MAX_NESTING} levels")));
        }
        json_patch::patch_unsafe(object, std::slice::from_ref(operation))
            .map_err(|error| within(&error.kind.to_string()))?;
    }
    Ok(())
}

/// Not recursive: that is what it looks for.
pub(crate) fn is_deeper_than(value: &Value, limit: usize) -> bool {
    let mut open = vec![(value, 0)];
    while let Some((value, depth)) = open.pop() {
        if depth > limit {
            return true;
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => open.extend(members.values().map(|member| (member, depth + 1))),
            _ => {}
        }
    }
    false
}

/// How many values there are, but not much further than the limit.
fn count(value: &Value, limit: usize) -> usize {
    let mut counted = 0;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        counted += 1;
        match value {
            Value::String(text) => counted += text.len() / TEXT,
            Value::Array(items) => open.extend(items),
            Value::Object(members) => {
                counted += members.keys().map(|key| key.len() / TEXT).sum::<usize>();
                open.extend(members.values());
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
    fn patches_that_grow_without_end_do_not_apply() {
        let nest = |_| json!({"op": "copy", "from": "/a", "path": "/a/a"});
        let double = |index| json!({"op": "copy", "from": "/a", "path": format!("/a/b{index}")});
        let long = |index| json!({"op": "copy", "from": "/long", "path": format!("/b{index}")});
        let deeper = |index: usize| json!({"op": "copy", "from": "/deep", "path": format!("/deep{}/x", "/d".repeat(150 + index))});
        let deep = (0..150).fold(json!({}), |inner, _| json!({"d": inner}));
        for (name, patch, part) in [
            ("nesting", copies(300, nest), "nested deeper than"),
            ("doubling", copies(40, double), "bring more than"),
            ("long texts", copies(40, long), "bring more than"),
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
