//! The builtins that write JSON and YAML, and that read YAML like OPA: the first of several documents, with the merge keys
//! (`<<`) applied. A scalar that OPA reads as a number, and `serde_yaml` as a string, is an error.

use std::collections::BTreeSet;

use regorus::Value;
use serde::Deserialize as _;

use super::call::call;
use super::functions::Function;
use super::guards::text;
use crate::rego::value::Plain;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("json.marshal", 1, |values| marshal("json.marshal", values)),
    ("yaml.is_valid", 1, |values| Ok((matches!(values, [Value::String(_)]) && read(text(values, 0)).is_some()).into())),
    ("yaml.marshal", 1, |values| marshal("yaml.marshal", values)),
    ("yaml.unmarshal", 1, unmarshal),
];

/// Writes a value. A number outside the range of a double is an error. OPA writes such numbers.
fn marshal(name: &str, values: &[Value]) -> Result<Value, String> {
    match call(name, values)? {
        Value::Undefined => Err("the value cannot be written".into()),
        text => Ok(text),
    }
}

fn unmarshal(values: &[Value]) -> Result<Value, String> {
    let Some(Value::String(text)) = values.first() else { return Ok(Value::Undefined) };
    let Some(value) = read(text) else { return Ok(Value::Undefined) };
    if let Some(number) = ambiguous_number(&value, text) {
        return Err(format!(
            "{number} is a number to some YAML parsers and a string to others: quote it, or write a plain number"
        ));
    }
    Ok(value)
}

/// Returns the first document; `None` if any document is not valid YAML.
fn read(text: &str) -> Option<Value> {
    let mut first = None;
    for document in serde_yaml::Deserializer::from_str(text) {
        let Plain(value) = if has_merge_key(text) {
            let mut value = serde_yaml::Value::deserialize(document).ok()?;
            value.apply_merge().ok()?;
            Plain::deserialize(value).ok()?
        } else {
            Plain::deserialize(document).ok()?
        };
        first.get_or_insert(value);
    }
    Some(first.unwrap_or(Value::Null))
}

/// Returns true if the text contains a `<<` that is not quoted.
fn has_merge_key(text: &str) -> bool {
    text.match_indices("<<").any(|(place, _)| !text[..place].ends_with(['"', '\'']))
}

/// Returns a string in the value that Go reads as a number: it occurs in the text without quotes.
fn ambiguous_number<'a>(value: &'a Value, text: &str) -> Option<&'a str> {
    let ends = |character: char| character.is_whitespace() || "[]{},:".contains(character);
    let bare: BTreeSet<&str> = text.split(ends).filter(|word| looks_like_a_number(word)).collect();
    // This is the usual case, which needs no walk through the value.
    if bare.is_empty() {
        return None;
    }
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::String(found) if bare.contains(found.as_ref()) => return Some(found),
            Value::Array(items) => open.extend(items.iter()),
            Value::Object(members) => open.extend(members.iter().flat_map(|(name, value)| [name, value])),
            _ => {}
        }
    }
    None
}

/// Returns true if Go's YAML library may read the text as a number, and `serde_yaml` reads it as a string. To Go, `012` is octal,
/// `089` is not, and `1_000` is one thousand.
fn looks_like_a_number(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return false;
    }
    let plain = digits.replace('_', "");
    let of_radix = |prefix: &str, radix| {
        plain.strip_prefix(prefix).is_some_and(|digits| i128::from_str_radix(digits, radix).is_ok())
    };
    let is_number = plain.parse::<f64>().is_ok() || of_radix("0x", 16) || of_radix("0o", 8) || of_radix("0b", 2);
    let has_zeros = plain.len() > 1 && plain.starts_with('0') && plain.bytes().all(|byte| byte.is_ascii_digit());
    is_number && (digits.contains('_') || has_zeros)
}
