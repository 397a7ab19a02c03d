//! Texts: letters, places and versions as Go has them.

use regorus::Value;

use super::call::call;
use super::functions::Function;
use super::guards::text;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("indexof", 2, |values| unless_empty("indexof", values)),
    ("indexof_n", 2, |values| unless_empty("indexof_n", values)),
    ("lower", 1, |values| Ok(mapped(values, |character| one(character.to_lowercase()).unwrap_or('i')))),
    ("semver.compare", 2, |values| call("semver.compare", &without_v(values))),
    ("semver.is_valid", 1, |values| call("semver.is_valid", &without_v(values))),
    ("upper", 1, |values| Ok(mapped(values, |character| one(character.to_uppercase()).unwrap_or(character)))),
];

/// Nothing is found at no place.
fn unless_empty(name: &str, values: &[Value]) -> Result<Value, String> {
    if text(values, 1).is_empty() { Ok(Value::Undefined) } else { call(name, values) }
}

/// Letter by letter: Go knows none that becomes two. `İ` is the only one that is two small letters elsewhere.
fn mapped(values: &[Value], letter: fn(char) -> char) -> Value {
    match values.first() {
        Some(Value::String(text)) => text.chars().map(letter).collect::<String>().into(),
        _ => Value::Undefined,
    }
}

fn one(mut characters: impl Iterator<Item = char>) -> Option<char> {
    characters.next().filter(|_| characters.next().is_none())
}

/// A version may begin with `v`.
fn without_v(values: &[Value]) -> Vec<Value> {
    let stripped = |value: &Value| match value {
        Value::String(text) => text.strip_prefix('v').map_or_else(|| value.clone(), Value::from),
        _ => value.clone(),
    };
    values.iter().map(stripped).collect()
}
