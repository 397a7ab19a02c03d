//! What regorus' builtins must not be called with: arguments by which a caller could end the process, or
//! for which OPA has an error where regorus would be undefined.

use regorus::Value;

use super::call::call;
use super::limits::{MAX_ELEMENTS, MAX_TEXT};
use super::pattern;

/// The most address bits that one call may expand: as many addresses as [`MAX_ELEMENTS`].
const MAX_ADDRESS_BITS: u8 = 20;
/// The deepest nesting in a glob; its parser is recursive.
const MAX_GLOB_NESTING: usize = 16;
/// The largest power of ten in a text: regorus writes integers out. A double ends at 308.
const MAX_EXPONENT: u32 = 400;
/// The longest text of a quantity with its unit, in bytes.
const MAX_QUANTITY: usize = 1000;
/// The longest regular expression, in bytes: reading one does not end at the deadline.
const MAX_PATTERN: usize = 64 * 1024;
/// The longest shift, in bits.
const MAX_SHIFT: f64 = 4096.0;

pub(super) type Guard = fn(&[Value]) -> Result<(), String>;
pub(super) type Items<'a> = Box<dyn ExactSizeIterator<Item = &'a Value> + 'a>;

pub(super) const GUARDED: &[(&str, Guard)] = &[
    ("bits.lsh", |values| allow(number(values, 1).is_none_or(|shift| shift <= MAX_SHIFT), "the shift is too long")),
    ("concat", joined_is_short),
    ("glob.match", glob_is_shallow),
    ("json.verify_schema", |values| values.iter().try_for_each(document_is_plain)),
    ("max", order_is_known),
    ("min", order_is_known),
    ("net.cidr_expand", network_is_small),
    ("numbers.range", range_is_short),
    ("numbers.range_step", range_is_short),
    ("replace", replaced_is_short),
    ("sort", order_is_known),
    ("units.parse", |values| quantity_is_short(text(values, 0))),
    ("units.parse_bytes", |values| quantity_is_short(text(values, 0))),
];

pub(super) fn allow(allowed: bool, why: &str) -> Result<(), String> {
    if allowed { Ok(()) } else { Err(why.to_owned()) }
}

pub(super) fn text(values: &[Value], place: usize) -> &str {
    match values.get(place) {
        Some(Value::String(text)) => text,
        _ => "",
    }
}

/// The items of an array or a set.
pub(super) fn items(values: &[Value], place: usize) -> Option<Items<'_>> {
    match values.get(place)? {
        Value::Array(items) => Some(Box::new(items.iter())),
        Value::Set(items) => Some(Box::new(items.iter())),
        _ => None,
    }
}

/// Infinite where it is too large for a double to tell it from its neighbours.
pub(super) fn number(values: &[Value], place: usize) -> Option<f64> {
    match values.get(place) {
        Some(Value::Number(number)) => Some(number.as_f64().unwrap_or(f64::INFINITY)),
        _ => None,
    }
}

/// Which argument of a function is a regular expression.
pub(in crate::rego) fn pattern_of(function: &str) -> Option<usize> {
    match function {
        "regex.replace" => Some(1),
        "regex.find_all_string_submatch_n" | "regex.find_n" | "regex.match" | "regex.split" | "re_match" => Some(0),
        _ => None,
    }
}

/// The arguments with the pattern among them as the library reads it. Refuses what is no regular expression; what is no text
/// is left to the builtin.
pub(super) fn with_pattern(place: usize, values: &[Value]) -> Result<Vec<Value>, String> {
    let mut values = values.to_vec();
    if let Some(value @ Value::String(_)) = values.get_mut(place) {
        *value = read_pattern(value)?;
    }
    Ok(values)
}

/// Refuses what is no regular expression.
pub(in crate::rego) fn pattern_is_valid(pattern: &Value) -> Result<(), String> {
    read_pattern(pattern).map(drop)
}

fn read_pattern(pattern: &Value) -> Result<Value, String> {
    let Value::String(text) = pattern else { return Ok(pattern.clone()) };
    allow(text.len() <= MAX_PATTERN, "the regular expression is too long")?;
    let refused = |why: &str| format!("{text:?} is no regular expression{why}");
    let pattern = Value::from(pattern::translated(text).map_err(|why| refused(&format!(": {why}")))?);
    match call("regex.is_valid", std::slice::from_ref(&pattern))? {
        Value::Bool(true) => Ok(pattern),
        _ => Err(refused("")),
    }
}

/// Refuses texts with numbers that would have very many digits.
pub(in crate::rego) fn exponents_are_small(text: &str) -> Result<(), String> {
    for (place, _) in text.match_indices(['e', 'E']) {
        let exponent = &text[place + 1..];
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        // regorus takes underscores out.
        let end = digits.find(|character: char| !character.is_ascii_digit() && character != '_');
        let digits: String = digits[..end.unwrap_or(digits.len())].replace('_', "");
        let small = digits.is_empty() || digits.parse().is_ok_and(|exponent: u32| exponent <= MAX_EXPONENT);
        allow(small, "the number is too large")?;
    }
    Ok(())
}

/// Reading digits takes time that grows with their square, and does not end at the deadline.
fn quantity_is_short(text: &str) -> Result<(), String> {
    allow(text.len() <= MAX_QUANTITY, "the text is too long")?;
    exponents_are_small(text)
}

/// regorus reads a text among these as JSON, with its own reader: see [`crate::rego::value`].
pub(super) fn document_is_plain(document: &Value) -> Result<(), String> {
    let Value::String(text) = document else { return Ok(()) };
    allow(!text.contains("::private::") && !text.contains("\\u"), "the text is not supported; use json.unmarshal")
}

fn glob_is_shallow(values: &[Value]) -> Result<(), String> {
    let mut depth = 0_usize;
    for character in text(values, 0).chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        allow(depth <= MAX_GLOB_NESTING, "the pattern is nested too deep")?;
    }
    Ok(())
}

/// OPA has sets after objects, regorus before them.
fn order_is_known(values: &[Value]) -> Result<(), String> {
    let any = |is: fn(&Value) -> bool| items(values, 0).is_some_and(|mut items| items.any(is));
    let mixed = any(|item| matches!(item, Value::Set(_))) && any(|item| matches!(item, Value::Object(_)));
    allow(!mixed, "sets beside objects are not ordered")
}

fn network_is_small(values: &[Value]) -> Result<(), String> {
    let Some((address, prefix)) = text(values, 0).split_once('/') else { return Ok(()) };
    let bits: u8 = if address.contains(':') { 128 } else { 32 };
    let small = prefix.trim().parse().map_or(true, |prefix| bits.saturating_sub(prefix) <= MAX_ADDRESS_BITS);
    allow(small, "the network has too many addresses")
}

fn range_is_short(values: &[Value]) -> Result<(), String> {
    let (Some(from), Some(to)) = (number(values, 0), number(values, 1)) else { return Ok(()) };
    #[allow(clippy::cast_precision_loss, reason = "a double has more digits")]
    let limit = MAX_ELEMENTS as f64;
    // Also false between two infinities.
    allow((to - from).abs() <= limit, "the range is too long")
}

pub(super) const LONG: &str = "the result is too long";

fn joined_is_short(values: &[Value]) -> Result<(), String> {
    let length = |item: &Value| match item {
        Value::String(item) => item.len().saturating_add(text(values, 0).len()),
        _ => 0,
    };
    let total = items(values, 1).into_iter().flatten().map(length).fold(0, usize::saturating_add);
    allow(total <= MAX_TEXT, LONG)
}

fn replaced_is_short(values: &[Value]) -> Result<(), String> {
    let (text, old, new) = (text(values, 0), text(values, 1), text(values, 2));
    // Most do not grow, and need no counting.
    if new.len() <= old.len() {
        return Ok(());
    }
    allow(text.matches(old).count().saturating_mul(new.len()).saturating_add(text.len()) <= MAX_TEXT, LONG)
}
