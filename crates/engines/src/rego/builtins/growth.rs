//! Guards for builtins whose result can be much larger than their arguments in memory: because arguments share parts, which the
//! result repeats, or because a string grows with each call.

use regorus::Value;

use super::call::call;
use super::guards::{Guard, LONG, allow, items, number, text};
use super::limits::{MAX_ELEMENTS, MAX_PAIRS, MAX_TEXT};
use super::size::{parts, serialized_size};

/// The longest string that a builtin may search, in bytes. No Kubernetes object contains a longer string.
const MAX_SEARCHED: usize = 2 << 20;

pub(super) const GUARDED: &[(&str, Guard)] = &[
    ("array.concat", |values| allow(count(values, 0) + count(values, 1) <= MAX_ELEMENTS, LARGE)),
    ("base64.encode", text_is_short),
    ("base64url.encode", text_is_short),
    ("base64url.encode_no_pad", text_is_short),
    ("glob.quote_meta", text_is_short),
    ("hex.encode", text_is_short),
    ("indexof_n", text_is_searchable),
    ("json.filter", parts_are_few),
    ("json.marshal", |values| serialized_is_short(values, 0, 0)),
    ("json.marshal_with_options", serialized_with_options_is_short),
    ("json.remove", parts_are_few),
    ("lower", text_is_short),
    ("object.subset", parts_are_few),
    ("object.union", parts_are_few),
    ("object.union_n", parts_are_few),
    ("split", |values| {
        text_is_searchable(values)?;
        let pieces = |limit| text(values, 0).matches(text(values, 1)).take(limit).count();
        allow(text(values, 0).len() < MAX_ELEMENTS || pieces(MAX_ELEMENTS) < MAX_ELEMENTS, LARGE)
    }),
    ("strings.any_prefix_match", pairs_are_few),
    ("strings.any_suffix_match", pairs_are_few),
    ("upper", text_is_short),
    ("urlquery.encode", text_is_short),
    ("urlquery.encode_object", |values| serialized_is_short(values, 0, 0)),
    ("walk", parts_are_few),
    // YAML indents each level by two bytes.
    ("yaml.marshal", |values| serialized_is_short(values, 2, 2)),
];

const LARGE: &str = "the result would be too large";

/// Returns the number of items of an argument; one if the argument is not a collection.
fn count(values: &[Value], index: usize) -> usize {
    items(values, index).map_or(1, |items| items.len())
}

fn text_is_short(values: &[Value]) -> Result<(), String> {
    allow(text(values, 0).len() <= MAX_TEXT, LONG)
}

fn text_is_searchable(values: &[Value]) -> Result<(), String> {
    allow(text(values, 0).len() <= MAX_SEARCHED, "the text is too long")
}

/// Guards builtins that copy values or walk through them.
fn parts_are_few(values: &[Value]) -> Result<(), String> {
    let mut left = MAX_ELEMENTS;
    for value in values {
        let parts = parts(value, left);
        allow(parts <= left, "the value is too large, with each part as often as it is found")?;
        left -= parts;
    }
    Ok(())
}

/// Guards builtins that serialize their first argument. Each part begins a line of `line` bytes, plus `level` bytes for each
/// level of nesting.
fn serialized_is_short(values: &[Value], line: usize, level: usize) -> Result<(), String> {
    let length = values.first().map_or(0, |value| serialized_size(value, MAX_TEXT, line, level));
    allow(length <= MAX_TEXT, LONG)
}

fn serialized_with_options_is_short(values: &[Value]) -> Result<(), String> {
    let Some(Value::Object(options)) = values.get(1) else { return serialized_is_short(values, 0, 0) };
    let length = |name: &str| match options.get(&name.into()) {
        Some(Value::String(text)) => text.len(),
        // The default indent is a tab.
        _ => 1,
    };
    serialized_is_short(values, length("prefix") + 1, length("indent"))
}

fn pairs_are_few(values: &[Value]) -> Result<(), String> {
    allow(count(values, 0).saturating_mul(count(values, 1)) <= MAX_PAIRS, "there is too much to compare")
}

/// Guards the builtins with regular expressions. `values` are their arguments.
pub(super) fn matches_are_few(function: &str, values: &[Value]) -> Result<(), String> {
    match function {
        "regex.replace" => replaced_is_short(values),
        "regex.find_all_string_submatch_n" => groups_are_few(values),
        "regex.find_n" | "regex.split" => text_is_searchable(values.get(1..).unwrap_or_default()),
        _ => Ok(()),
    }
}

/// Returns the number of matches of a pattern in a text, at most `most`. A negative `most` is no limit.
fn matches(pattern: &Value, text: &Value, most: Value) -> Result<usize, String> {
    match call("regex.find_n", &[pattern.clone(), text.clone(), most])? {
        Value::Array(found) => Ok(found.len()),
        _ => Ok(0),
    }
}

fn replaced_is_short(values: &[Value]) -> Result<(), String> {
    text_is_searchable(values)?;
    let (searched, new) = (text(values, 0).len(), text(values, 2));
    // A reference to a group, such as `$1`, inserts a part of each match. The matches together are at most the whole text.
    let referred = searched.saturating_mul(1 + new.matches('$').count());
    let is_short = |matches: usize| matches.saturating_mul(new.len()).saturating_add(referred) <= MAX_TEXT;
    let [searched_value, pattern, _] = values else { return Ok(()) };
    // The matches are counted only if a match at every position would exceed the limit.
    allow(is_short(searched + 1) || is_short(matches(pattern, searched_value, (-1).into())?), LONG)
}

fn groups_are_few(values: &[Value]) -> Result<(), String> {
    text_is_searchable(values.get(1..).unwrap_or_default())?;
    let [pattern, searched, most] = values else { return Ok(()) };
    let groups = 1 + text(values, 0).matches('(').count();
    let are_few = |matches: usize| matches.saturating_mul(groups) <= MAX_ELEMENTS;
    if are_few(text(values, 1).len() + 1) || number(values, 2).is_none() {
        return Ok(());
    }
    allow(are_few(matches(pattern, searched, most.clone())?), LARGE)
}
