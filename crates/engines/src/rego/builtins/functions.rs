//! Builtins of our own: those that regorus does not have and constraint templates use, and those that it
//! has with another meaning than OPA or with a reader that can be made to end the process.

use regorus::Value;

use super::guards::{exponents_are_small, pattern_is_valid};
use super::{call, sprintf};
use crate::rego::value::Plain;

type Function = fn(&[Value]) -> Result<Value, String>;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("all", 1, |values| Ok(of_items(values, |items| items.iter().all(|item| is_true(item))))),
    ("any", 1, |values| Ok(of_items(values, |items| items.iter().any(|item| is_true(item))))),
    ("json.is_valid", 1, |values| Ok(is_valid(values, |text| serde_json::from_str::<Plain>(text).is_ok()))),
    ("json.unmarshal", 1, |values| Ok(read(values, |text| serde_json::from_str(text).ok()))),
    ("re_match", 2, re_match),
    ("sprintf", 2, sprintf::sprintf),
    ("to_number", 1, to_number),
    ("yaml.is_valid", 1, |values| Ok(is_valid(values, |text| serde_yaml::from_str::<Plain>(text).is_ok()))),
    ("yaml.unmarshal", 1, |values| Ok(read(values, |text| serde_yaml::from_str(text).ok()))),
];

fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true)
}

fn of_items(values: &[Value], holds: fn(&[&Value]) -> bool) -> Value {
    match values.first() {
        Some(Value::Array(items)) => holds(&items.iter().collect::<Vec<_>>()).into(),
        Some(Value::Set(items)) => holds(&items.iter().collect::<Vec<_>>()).into(),
        _ => Value::Undefined,
    }
}

/// The older name of `regex.match`.
fn re_match(values: &[Value]) -> Result<Value, String> {
    pattern_is_valid(values.first())?;
    call("regex.match", values)
}

fn read(values: &[Value], read: fn(&str) -> Option<Plain>) -> Value {
    match values.first() {
        Some(Value::String(text)) => read(text).map_or(Value::Undefined, |value| value.0),
        _ => Value::Undefined,
    }
}

fn is_valid(values: &[Value], is_valid: fn(&str) -> bool) -> Value {
    match values.first() {
        Some(Value::String(text)) => is_valid(text).into(),
        _ => Value::Undefined,
    }
}

fn to_number(values: &[Value]) -> Result<Value, String> {
    let Some(Value::String(text)) = values.first() else { return call("to_number", values) };
    exponents_are_small(text)?;
    Ok(match serde_json::from_str(text) {
        Ok(Plain(number @ Value::Number(_))) => number,
        _ => Value::Undefined,
    })
}
