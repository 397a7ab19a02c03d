//! String builtins like in Go: upper and lower case, positions of substrings, and semantic versions.

use regorus::Value;

use super::call::call;
use super::functions::Function;
use super::guards::text;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("indexof", 2, |values| search("indexof", values)),
    ("indexof_n", 2, |values| search("indexof_n", values)),
    ("lower", 1, |values| Ok(map_characters(values, |character| single(character.to_lowercase()).unwrap_or('i')))),
    ("semver.compare", 2, |values| call("semver.compare", &without_v(values))),
    ("semver.is_valid", 1, |values| call("semver.is_valid", &without_v(values))),
    ("upper", 1, |values| {
        Ok(map_characters(values, |character| single(character.to_uppercase()).unwrap_or(character)))
    }),
];

/// Calls a search builtin. As in OPA, the position of an empty string is undefined.
fn search(name: &str, values: &[Value]) -> Result<Value, String> {
    if text(values, 1).is_empty() { Ok(Value::Undefined) } else { call(name, values) }
}

/// Maps each character to one character: Go never maps a character to two. In Rust, `İ` is the only character whose lower case
/// is two characters.
fn map_characters(values: &[Value], map: fn(char) -> char) -> Value {
    match values.first() {
        Some(Value::String(text)) => text.chars().map(map).collect::<String>().into(),
        _ => Value::Undefined,
    }
}

/// Returns the only character; `None` if there are several.
fn single(mut characters: impl Iterator<Item = char>) -> Option<char> {
    characters.next().filter(|_| characters.next().is_none())
}

/// Removes the prefix `v` from the versions, which OPA allows.
fn without_v(values: &[Value]) -> Vec<Value> {
    let stripped = |value: &Value| match value {
        Value::String(text) => text.strip_prefix('v').map_or_else(|| value.clone(), Value::from),
        _ => value.clone(),
    };
    values.iter().map(stripped).collect()
}
