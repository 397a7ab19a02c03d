//! Numeric builtins for which regorus returns undefined or a rounded value, but OPA an exact value.

use regorus::Value;

use super::call::call;
use super::functions::Function;
use super::guards::{items, number, text};

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("numbers.range_step", 3, range_step),
    ("product", 1, |values| finite("product", values)),
    ("sum", 1, |values| finite("sum", values)),
    ("units.parse_bytes", 1, parse_bytes),
];

/// `numbers.range_step`. In regorus a step of zero would end the process, and a step longer than the range is undefined.
fn range_step(values: &[Value]) -> Result<Value, String> {
    let are_whole = values.iter().all(|value| matches!(value, Value::Number(number) if number.is_integer()));
    let is_forward = matches!(values.get(2), Some(Value::Number(step)) if *step > 0_u64.into());
    if !are_whole || !is_forward {
        return Ok(Value::Undefined);
    }
    let (Some(from), Some(to), Some(step)) = (number(values, 0), number(values, 1), number(values, 2)) else {
        return Ok(Value::Undefined);
    };
    // Only the first number is in the range. Its guard has limited the length of the range.
    if step > (to - from).abs() {
        return Ok(vec![values[0].clone()].into());
    }
    call("numbers.range_step", values)
}

/// Returns an error if the result is too large. OPA's numbers have no limit; regorus' fractions are doubles.
fn finite(name: &str, values: &[Value]) -> Result<Value, String> {
    let are_numbers = items(values, 0).is_some_and(|mut items| items.all(|item| matches!(item, Value::Number(_))));
    match call(name, values)? {
        Value::Undefined if are_numbers => Err("the result is too large".into()),
        answer => Ok(answer),
    }
}

/// `units.parse_bytes`. OPA truncates fractions of a byte, regorus rounds them.
fn parse_bytes(values: &[Value]) -> Result<Value, String> {
    let whole = call("units.parse_bytes", values)?;
    let quantity = text(values, 0).trim_matches('"');
    if whole == Value::Undefined || !quantity.contains(['.', 'e', 'E']) {
        return Ok(whole);
    }
    let (number, unit) =
        quantity.split_at(quantity.rfind(|digit: char| digit.is_ascii_digit()).map_or(0, |last| last + 1));
    let factor = match call("units.parse_bytes", &[format!("1{unit}").into()])? {
        Value::Number(factor) => factor.as_f64(),
        _ => None,
    };
    let (Ok(number), Some(factor)) = (number.parse::<f64>(), factor) else { return Ok(whole) };
    let bytes = number * factor;
    // A difference to a whole number in the last digits is a rounding error of the double: it must not lose a byte.
    let is_whole = (bytes - bytes.round()).abs() <= 1e-9 * bytes.abs().max(1.0);
    let bytes = if is_whole { bytes.round() } else { bytes.trunc() };
    #[allow(clippy::cast_possible_truncation, reason = "it has no fraction and is small")]
    Ok(if bytes.abs() < 9e15 { (bytes as i64).into() } else { whole })
}
