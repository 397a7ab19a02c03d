//! `regex.template_match` like in OPA: text with regular expressions between delimiters. regorus' implementation ends the
//! process if the value is shorter than the text before an expression.

use std::fmt::Write as _;

use regorus::Value;

use super::call::call;
use super::functions::Function;
use super::guards::with_pattern;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[("regex.template_match", 4, template_match)];

fn template_match(values: &[Value]) -> Result<Value, String> {
    let [Value::String(template), value @ Value::String(_), Value::String(start), Value::String(end)] = values else {
        return Ok(Value::Undefined);
    };
    let (&[start], &[end]) = (start.as_bytes(), end.as_bytes()) else {
        return Err("a delimiter must be one ASCII character".into());
    };
    let expression = expression(template, start, end)?;
    call("regex.match", &with_pattern(0, &[expression.into(), value.clone()])?)
}

/// Translates the template to one regular expression. Delimiters may nest: only the outermost ones delimit an expression.
fn expression(template: &str, start: u8, end: u8) -> Result<String, String> {
    let unbalanced = || format!("the delimiters in {template:?} are not balanced");
    let mut out = String::from("^");
    let (mut depth, mut text_from, mut pattern_from) = (0_usize, 0, 0);
    for (place, byte) in template.bytes().enumerate() {
        if byte == start {
            depth += 1;
            if depth == 1 {
                out += &regex::escape(&template[text_from..place]);
                pattern_from = place + 1;
            }
        } else if byte == end {
            depth = depth.checked_sub(1).ok_or_else(unbalanced)?;
            if depth == 0 {
                let pattern = &template[pattern_from..place];
                // Each expression must be valid alone. `)(` would be valid only as a part of the whole.
                with_pattern(0, &[format!("^{pattern}$").into()])?;
                _ = write!(out, "({pattern})");
                text_from = place + 1;
            }
        }
    }
    if depth > 0 {
        return Err(unbalanced());
    }
    out += &regex::escape(&template[text_from..]);
    out.push('$');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbalanced_delimiters_are_an_error() {
        for template in ["a{b", "a}b", "{{a}", "{a}}"] {
            assert!(expression(template, b'{', b'}').is_err(), "{template}");
        }
        assert!(expression("a|b|", b'|', b'|').is_err());
        assert_eq!(expression("ü.{a{2}}ö", b'{', b'}').as_deref(), Ok(r"^ü\.(a{2})ö$"));
    }

    #[test]
    fn a_value_shorter_than_the_text_does_not_match() {
        let values = ["urn:{.*}", "u", "{", "}"].map(Value::from);
        assert_eq!(template_match(&values), Ok(false.into()));
    }
}
