//! Builtins that Proviso implements. Some are missing in regorus, and constraint templates use them. Others behave differently in
//! regorus and in OPA, or have a parser in regorus that an input can crash, and the process with it.

use std::collections::{BTreeMap, BTreeSet};

use regorus::Value;

use super::call::call;
use super::growth::matches_are_few;
use super::guards::{Items, document_is_plain, exponents_are_small, items, pattern_is_valid, text, with_pattern};
use super::{patching, replacing, sprintf};
use crate::rego::value::Plain;

pub(super) type Function = fn(&[Value]) -> Result<Value, String>;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("all", 1, |values| Ok(of_items(values, |mut items| items.all(is_true)))),
    ("any", 1, |values| Ok(of_items(values, |mut items| items.any(is_true)))),
    ("cast_array", 1, |values| Ok(cast_array(values))),
    ("cast_boolean", 1, |values| Ok(cast(values, |value| matches!(value, Value::Bool(_))))),
    ("cast_null", 1, |values| Ok(cast(values, |value| matches!(value, Value::Null)))),
    ("cast_object", 1, |values| Ok(cast(values, |value| matches!(value, Value::Object(_))))),
    ("cast_set", 1, |values| Ok(cast_set(values))),
    ("cast_string", 1, |values| Ok(cast(values, |value| matches!(value, Value::String(_))))),
    ("json.is_valid", 1, |values| Ok((read(text(values, 0)) != Value::Undefined).into())),
    ("json.match_schema", 2, match_schema),
    ("json.patch", 2, patching::patch),
    ("json.unmarshal", 1, |values| Ok(read(text(values, 0)))),
    ("object.subset", 2, |values| Ok(subset(values))),
    // The deprecated name of `regex.match`.
    ("re_match", 2, |values| matching("regex.match", 0, values)),
    ("regex.find_all_string_submatch_n", 3, |values| matching("regex.find_all_string_submatch_n", 0, values)),
    ("regex.find_n", 3, |values| matching("regex.find_n", 0, values)),
    ("regex.is_valid", 1, |values| Ok(is_pattern(values))),
    ("regex.match", 2, |values| matching("regex.match", 0, values)),
    ("regex.replace", 3, |values| matching("regex.replace", 1, values)),
    ("regex.split", 2, split),
    ("set_diff", 2, |values| Ok(set_diff(values))),
    ("sprintf", 2, sprintf::sprintf),
    ("strings.count", 2, |values| Ok(count(values))),
    ("strings.replace_n", 2, replacing::replace_n),
    ("to_number", 1, to_number),
];

fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true)
}

fn of_items(values: &[Value], holds: fn(Items<'_>) -> bool) -> Value {
    items(values, 0).map_or(Value::Undefined, |items| holds(items).into())
}

/// Returns the value if it has the requested type, otherwise undefined.
fn cast(values: &[Value], is_of_type: fn(&Value) -> bool) -> Value {
    values.first().filter(|value| is_of_type(value)).cloned().unwrap_or(Value::Undefined)
}

fn cast_array(values: &[Value]) -> Value {
    match values.first() {
        Some(Value::Set(items)) => items.iter_sorted().cloned().collect::<Vec<_>>().into(),
        _ => cast(values, |value| matches!(value, Value::Array(_))),
    }
}

fn cast_set(values: &[Value]) -> Value {
    match values.first() {
        Some(Value::Array(items)) => items.iter().cloned().collect::<BTreeSet<_>>().into(),
        _ => cast(values, |value| matches!(value, Value::Set(_))),
    }
}

/// `set_diff`: the deprecated form of `a - b`.
fn set_diff(values: &[Value]) -> Value {
    match values {
        [Value::Set(from), Value::Set(without)] => {
            let without: BTreeSet<&Value> = without.iter().collect();
            from.iter().filter(|item| !without.contains(item)).cloned().collect::<BTreeSet<_>>().into()
        }
        _ => Value::Undefined,
    }
}

/// `object.subset`. regorus panics if the subset is an empty array.
fn subset(values: &[Value]) -> Value {
    match values {
        [Value::Array(all), part @ Value::Set(_)] => {
            is_subset(&all.iter().cloned().collect::<BTreeSet<_>>().into(), part).into()
        }
        [all @ Value::Object(_), part @ Value::Object(_)]
        | [all @ Value::Set(_), part @ Value::Set(_)]
        | [all @ Value::Array(_), part @ Value::Array(_)] => is_subset(all, part).into(),
        _ => Value::Undefined,
    }
}

fn is_subset(all: &Value, part: &Value) -> bool {
    match (all, part) {
        (Value::Object(all), Value::Object(part)) => {
            part.iter().all(|(key, part)| all.get(key).is_some_and(|all| is_subset(all, part)))
        }
        (Value::Set(all), Value::Set(part)) => part.is_subset(all),
        (Value::Array(all), Value::Array(part)) => {
            part.is_empty() || all.to_vec().windows(part.len()).any(|window| window.iter().eq(part.iter()))
        }
        (all, part) => all == part,
    }
}

/// Calls a regular expression builtin of regorus, with the pattern translated from OPA's syntax. `index` is the index of the
/// pattern among the arguments.
fn matching(name: &str, index: usize, values: &[Value]) -> Result<Value, String> {
    let values = with_pattern(index, values)?;
    matches_are_few(name, &values)?;
    call(name, &values)
}

/// `regex.split`. Go returns no piece before an empty match at the beginning, nor after an empty match at the end.
fn split(values: &[Value]) -> Result<Value, String> {
    let [Value::String(pattern), text @ Value::String(searched)] = values else { return Ok(Value::Undefined) };
    let answer = matching("regex.split", 0, values)?;
    let Value::Array(pieces) = &answer else { return Ok(answer) };
    let nothing = Value::from("");
    if searched.is_empty() {
        let pieces: Vec<Value> = if pattern.is_empty() { Vec::new() } else { vec![nothing] };
        return Ok(pieces.into());
    }
    if pieces.first() != Some(&nothing) && pieces.last() != Some(&nothing) {
        return Ok(answer);
    }
    let found = matching("regex.find_n", 0, &[pattern.as_ref().into(), text.clone(), (-1).into()])?;
    let Value::Array(found) = &found else { return Ok(answer) };
    let is_empty = |piece: Option<&Value>, found: Option<&Value>| [piece, found] == [Some(&nothing); 2];
    let from = usize::from(is_empty(pieces.first(), found.first()));
    let to = pieces.len() - usize::from(is_empty(pieces.last(), found.last()));
    Ok(pieces.iter().take(to).skip(from).cloned().collect::<Vec<_>>().into())
}

fn is_pattern(values: &[Value]) -> Value {
    values
        .first()
        .is_some_and(|pattern| matches!(pattern, Value::String(_)) && pattern_is_valid(pattern).is_ok())
        .into()
}

/// `json.match_schema`. OPA answers with a list of errors, regorus with one string or null.
fn match_schema(values: &[Value]) -> Result<Value, String> {
    values.iter().try_for_each(document_is_plain)?;
    let [document, schema] = values else { return Ok(Value::Undefined) };
    let document = match document {
        Value::String(text) => read(text),
        other => other.clone(),
    };
    if document == Value::Undefined {
        return Ok(document);
    }
    let answer = call("json.match_schema", &[document, schema.clone()])?;
    let Value::Array(parts) = &answer else { return Ok(answer) };
    let errors: Vec<Value> = match parts.get(1) {
        Some(Value::String(text)) => {
            let members = ["desc", "error"].map(|name| (Value::from(name), Value::String(text.clone())));
            let others = [("field", "(root)"), ("type", "")].map(|(name, text)| (Value::from(name), Value::from(text)));
            vec![members.into_iter().chain(others).collect::<BTreeMap<_, _>>().into()]
        }
        _ => Vec::new(),
    };
    Ok(vec![parts.first().cloned().unwrap_or(Value::Undefined), errors.into()].into())
}

/// `strings.count`: the number of occurrences that do not overlap.
fn count(values: &[Value]) -> Value {
    match values {
        [Value::String(text), Value::String(part)] => (text.matches(part.as_ref()).count() as u64).into(),
        _ => Value::Undefined,
    }
}

/// Parses JSON. Returns undefined if the text is not valid JSON, for example empty.
fn read(text: &str) -> Value {
    serde_json::from_str(text).map_or(Value::Undefined, |Plain(value)| value)
}

fn to_number(values: &[Value]) -> Result<Value, String> {
    let Some(Value::String(text)) = values.first() else { return call("to_number", values) };
    exponents_are_small(text)?;
    Ok(match read(text) {
        number @ Value::Number(_) => number,
        _ => Value::Undefined,
    })
}
