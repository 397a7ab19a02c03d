//! How large values are whose parts are shared: a value costs nothing to be a part of many others, until these are written out
//! or built anew, part by part.

use std::iter::once;

use regorus::Value;

/// How many values there are in this one, itself included; not much more than the limit.
pub(super) fn parts(value: &Value, limit: usize) -> usize {
    sum(value, limit, |_, _| 1)
}

/// About how many bytes the value takes as a text; not much more than the limit. Each part begins a line with so many bytes, and
/// with so many more for each level.
pub(super) fn written(value: &Value, limit: usize, line: usize, level: usize) -> usize {
    sum(value, limit, |part, depth| {
        let own = match part {
            Value::String(text) => text.len() + 2,
            Value::Number(number) => number.format_decimal().len(),
            _ => 4,
        };
        own.saturating_add(line).saturating_add(level.saturating_mul(depth))
    })
}

/// Not recursive, and with one open iterator a level.
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
    fn what_is_shared_counts_as_often_as_it_is_found() {
        let value = crate::rego::value::read(r#"{"a": [1, "text", null], "b": {"c": {}}}"#).unwrap();
        assert_eq!(parts(&value, 100), 10);
        let text = value.to_string();
        assert!((text.len()..2 * text.len()).contains(&written(&value, 1000, 0, 0)), "{text}");
        assert_eq!(written(&value, 1000, 7, 0), written(&value, 1000, 0, 0) + 70);
        let doubled = (0..100).fold(value, |value, _| vec![value.clone(), value].into());
        assert!((1000..1100).contains(&parts(&doubled, 1000)));
        assert!((1000..1100).contains(&written(&doubled, 1000, 0, 0)));
    }
}
