//! The sizes of values with shared parts. A value that is a part of many others is in memory once, but is repeated when the
//! others are serialized or copied.

use std::iter::once;

use regorus::Value;

/// Returns the number of values in this value, including itself. The count stops shortly above `limit`.
pub(super) fn parts(value: &Value, limit: usize) -> usize {
    sum(value, limit, |_, _| 1)
}

/// Returns the approximate size of the serialized value in bytes. The count stops shortly above `limit`. Each part begins a line
/// of `line` bytes, plus `level` bytes for each level of nesting.
pub(super) fn serialized_size(value: &Value, limit: usize, line: usize, level: usize) -> usize {
    sum(value, limit, |part, depth| {
        let own = match part {
            Value::String(text) => text.len() + 2,
            Value::Number(number) => number.format_decimal().len(),
            _ => 4,
        };
        own.saturating_add(line).saturating_add(level.saturating_mul(depth))
    })
}

/// Sums the weights of all parts. The function is not recursive. It holds one iterator for each level of nesting.
fn sum(value: &Value, limit: usize, weigh: impl Fn(&Value, usize) -> usize) -> usize {
    let mut total = 0_usize;
    let mut open: Vec<Box<dyn Iterator<Item = &Value> + '_>> = vec![Box::new(once(value))];
    while let Some(parts) = open.last_mut() {
        let Some(part) = parts.next() else {
            open.pop();
            continue;
        };
        total = total.saturating_add(weigh(part, open.len() - 1));
        if total > limit {
            break;
        }
        match part {
            Value::Array(items) => open.push(Box::new(items.iter())),
            Value::Set(items) => open.push(Box::new(items.iter())),
            Value::Object(members) => open.push(Box::new(members.iter().flat_map(|(key, value)| [key, value]))),
            _ => {}
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_parts_count_once_for_each_occurrence() {
        let value = crate::rego::value::read(r#"{"a": [1, "text", null], "b": {"c": {}}}"#).unwrap();
        assert_eq!(parts(&value, 100), 10);
        let text = value.to_string();
        assert!((text.len()..2 * text.len()).contains(&serialized_size(&value, 1000, 0, 0)), "{text}");
        assert_eq!(serialized_size(&value, 1000, 7, 0), serialized_size(&value, 1000, 0, 0) + 70);
        let doubled = (0..100).fold(value, |value, _| vec![value.clone(), value].into());
        assert!((1000..1100).contains(&parts(&doubled, 1000)));
        assert!((1000..1100).contains(&serialized_size(&doubled, 1000, 0, 0)));
    }
}
