//! Guards against builtins that make much more than they are given: from values that share their parts, and from
//! texts that grow with each call.

use regorus::Value;

use super::call::call;
use super::guards::{Guard, LONG, allow, items, number, text};
use super::limits::{MAX_ELEMENTS, MAX_PAIRS, MAX_TEXT};
use super::size::{parts, written};

/// The longest text that is taken apart, in bytes. No object of Kubernetes has a longer one.
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
    ("json.marshal", |values| written_is_short(values, 0, 0)),
    ("json.marshal_with_options", written_with_options_is_short),
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
    ("urlquery.encode_object", |values| written_is_short(values, 0, 0)),
    ("walk", parts_are_few),
    // Two bytes a level.
    ("yaml.marshal", |values| written_is_short(values, 2, 2)),
];

const LARGE: &str = "the result would be too large";

/// How many items there are; what has none is one itself.
fn count(values: &[Value], place: usize) -> usize {
    items(values, place).map_or(1, |items| items.len())
}

fn text_is_short(values: &[Value]) -> Result<(), String> {
    allow(text(values, 0).len() <= MAX_TEXT, LONG)
}

fn text_is_searchable(values: &[Value]) -> Result<(), String> {
    allow(text(values, 0).len() <= MAX_SEARCHED, "the text is too long")
}

/// For what builds values anew, or walks through them.
fn parts_are_few(values: &[Value]) -> Result<(), String> {
    let mut left = MAX_ELEMENTS;
    for value in values {
        let parts = parts(value, left);
        allow(parts <= left, "the value is too large, with each part as often as it is found")?;
        left -= parts;
    }
    Ok(())
}

/// For what writes its first argument out.
fn written_is_short(values: &[Value], line: usize, level: usize) -> Result<(), String> {
    let length = values.first().map_or(0, |value| written(value, MAX_TEXT, line, level));
    allow(length <= MAX_TEXT, LONG)
}

fn written_with_options_is_short(values: &[Value]) -> Result<(), String> {
    let Some(Value::Object(options)) = values.get(1) else { return written_is_short(values, 0, 0) };
    let length = |name: &str| match options.get(&name.into()) {
        Some(Value::String(text)) => text.len(),
        // A tabulator, unless it is said otherwise.
        _ => 1,
    };
    written_is_short(values, length("prefix") + 1, length("indent"))
}

fn pairs_are_few(values: &[Value]) -> Result<(), String> {
    allow(count(values, 0).saturating_mul(count(values, 1)) <= MAX_PAIRS, "there is too much to compare")
}

/// For the builtins with regular expressions, whose arguments these are.
pub(super) fn matches_are_few(function: &str, values: &[Value]) -> Result<(), String> {
    match function {
        "regex.replace" => replaced_is_short(values),
        "regex.find_all_string_submatch_n" => groups_are_few(values),
        "regex.find_n" | "regex.split" => text_is_searchable(values.get(1..).unwrap_or_default()),
        _ => Ok(()),
    }
}

/// How often a pattern is found in a text, at most.
fn matches(pattern: &Value, text: &Value, most: Value) -> Result<usize, String> {
    match call("regex.find_n", &[pattern.clone(), text.clone(), most])? {
        Value::Array(found) => Ok(found.len()),
        _ => Ok(0),
    }
}

fn replaced_is_short(values: &[Value]) -> Result<(), String> {
    text_is_searchable(values)?;
    let (searched, new) = (text(values, 0).len(), text(values, 2));
    // A reference to a group brings no more than the text has, all matches taken together.
    let referred = searched.saturating_mul(1 + new.matches('$').count());
    let is_short = |matches: usize| matches.saturating_mul(new.len()).saturating_add(referred) <= MAX_TEXT;
    let [searched_value, pattern, _] = values else { return Ok(()) };
    // Counted only where it may matter.
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
