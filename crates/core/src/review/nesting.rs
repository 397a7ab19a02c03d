//! Checks the nesting depth of JSON text without parsing it.

/// Returns true if lists and objects are nested deeper than `limit`. The result for text that is not JSON is arbitrary.
pub(super) fn exceeds(json: &[u8], limit: usize) -> bool {
    // Most reviews have fewer brackets than `limit`. Counting brackets is several times cheaper than tracking the depth.
    count_opening(json) > limit && depth_exceeds(json, limit)
}

/// Returns the number of `{` and `[`. The loop compiles to vector instructions.
fn count_opening(json: &[u8]) -> usize {
    // `{` and `[` differ in one bit, and no other byte becomes `[` without it. A chunk of 192 bytes cannot overflow the `u8` sum.
    let count = |chunk: &[u8]| chunk.iter().map(|byte| u8::from(byte & !0x20 == b'[')).sum::<u8>();
    json.chunks(192).map(|chunk| usize::from(count(chunk))).sum()
}

fn depth_exceeds(json: &[u8], limit: usize) -> bool {
    let mut depth = 0_usize;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Consumes the rest of a string and its closing quote.
fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn brackets_count_only_if_they_nest() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(!exceeds(deep(10).as_bytes(), 10));
        assert!(exceeds(deep(11).as_bytes(), 10));
        let wide = format!("[{}[]]", "[],".repeat(1000));
        assert!(!exceeds(wide.as_bytes(), 10));
        let quoted = serde_json::to_string(&format!("\"\\{}", deep(100))).unwrap();
        assert!(!exceeds(quoted.as_bytes(), 10), "brackets in a string do not nest");
    }

    proptest! {
        #[test]
        fn every_bracket_is_counted(text in proptest::collection::vec(prop_oneof![Just(b'{'), Just(b'['), any::<u8>()], 0..600)) {
            prop_assert_eq!(count_opening(&text), text.iter().filter(|byte| matches!(byte, b'{' | b'[')).count());
        }

        #[test]
        fn depth_equals_the_depth_of_the_parsed_value(json in arbitrary_json()) {
            fn depth(value: &serde_json::Value) -> usize {
                match value {
                    serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
                    serde_json::Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
                    _ => 0,
                }
            }
            let text = json.to_string();
            let depth = depth(&json);
            prop_assert!(!depth_exceeds(text.as_bytes(), depth));
            prop_assert!(depth == 0 || depth_exceeds(text.as_bytes(), depth - 1));
        }
    }

    fn arbitrary_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i32>().prop_map(Into::into),
            "[\"\\\\{}\\[\\]a]{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 40, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                proptest::collection::btree_map("[\"\\\\{a]{0,4}", inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }
}
