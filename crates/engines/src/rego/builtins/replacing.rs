//! `strings.replace_n` like in OPA: each position is replaced once, by the first pattern that matches there, in the order of the
//! patterns.

use regorus::Value;

use super::limits::MAX_TEXT;

/// The largest number of byte comparisons. The worst case compares each pattern at each position of the text.
const MAX_COMPARED: usize = 1 << 28;

pub(super) fn replace_n(values: &[Value]) -> Result<Value, String> {
    let [Value::Object(patterns), Value::String(text)] = values else { return Ok(Value::Undefined) };
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for (old, new) in patterns.iter() {
        let (Value::String(old), Value::String(new)) = (old, new) else { return Ok(Value::Undefined) };
        pairs.push((old, new));
    }
    let compared: usize = pairs.iter().map(|(old, _)| old.len() + 1).fold(0, usize::saturating_add);
    if compared.saturating_mul(text.len()) > MAX_COMPARED {
        return Err("the text is too long for so many patterns".into());
    }
    pairs.sort_unstable();
    let mut out = String::new();
    let mut rest: &str = text;
    // An empty pattern matches once between two characters.
    let mut after_empty = false;
    loop {
        let found = pairs.iter().find(|(old, _)| rest.starts_with(old) && !(after_empty && old.is_empty()));
        after_empty = found.is_some_and(|(old, _)| old.is_empty());
        if let Some((old, new)) = found {
            out += new;
            rest = &rest[old.len()..];
        } else if let Some(character) = rest.chars().next() {
            out.push(character);
            rest = &rest[character.len_utf8()..];
        } else {
            return Ok(out.into());
        }
        if out.len() > MAX_TEXT {
            return Err("the result is too long".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacements_with_too_many_comparisons_are_refused() {
        let object = |from: &str| crate::rego::value::read(&format!("{{{from:?}: \"b\"}}")).unwrap();
        let long = "a".repeat(1 << 20);
        let almost = object(&format!("{}b", &long[..1 << 10]));
        let error = replace_n(&[almost, long.as_str().into()]).unwrap_err();
        assert!(error.contains("so many patterns"), "{error}");
        assert_eq!(replace_n(&[object("aa"), long.as_str().into()]), Ok("b".repeat(1 << 19).into()));
    }

    #[test]
    fn replaced_text_is_not_replaced_again() {
        for (patterns, text, expected) in [
            (r#"{"a": "b", "b": "a"}"#, "ab", "ba"),
            (r#"{"<": "&lt;", ">": "&gt;"}"#, "<b>", "&lt;b&gt;"),
            (r#"{"a": "1", "aa": "2"}"#, "aaa", "111"),
            (r#"{"": "-"}"#, "ab", "-a-b-"),
            (r#"{"x": "y"}"#, "", ""),
        ] {
            let patterns = crate::rego::value::read(patterns).unwrap();
            assert_eq!(replace_n(&[patterns, text.into()]), Ok(expected.into()), "{text}");
        }
    }
}
