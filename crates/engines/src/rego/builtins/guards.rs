//! Guards for regorus' builtins. They refuse arguments that could end the process, and arguments for which OPA returns an error
//! but regorus would return undefined.

use regorus::Value;

use super::call::call;
use super::limits::{MAX_ELEMENTS, MAX_TEXT};
use super::pattern;

/// The largest number of host bits of a network that one call may expand: about [`MAX_ELEMENTS`] addresses.
const MAX_ADDRESS_BITS: u8 = 20;
/// The deepest nesting in a glob. The parser of globs is recursive.
const MAX_GLOB_NESTING: usize = 16;
/// The largest exponent of a number in a text: regorus expands integers to all of their digits. The largest exponent of a
/// double is 308.
const MAX_EXPONENT: u32 = 400;
/// The longest quantity with its unit, in bytes.
const MAX_QUANTITY: usize = 1000;
/// The longest regular expression, in bytes. The deadline does not interrupt its compilation.
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

/// Returns a string argument; the empty string if the argument is not a string.
pub(super) fn text(values: &[Value], index: usize) -> &str {
    match values.get(index) {
        Some(Value::String(text)) => text,
        _ => "",
    }
}

/// Returns the items of an array or a set argument; `None` for other types.
pub(super) fn items(values: &[Value], index: usize) -> Option<Items<'_>> {
    match values.get(index)? {
        Value::Array(items) => Some(Box::new(items.iter())),
        Value::Set(items) => Some(Box::new(items.iter())),
        _ => None,
    }
}

/// Returns a number argument; infinity if the number is too large for a double to represent it exactly. `None` if the argument
/// is not a number.
pub(super) fn number(values: &[Value], index: usize) -> Option<f64> {
    match values.get(index) {
        Some(Value::Number(number)) => Some(number.as_f64().unwrap_or(f64::INFINITY)),
        _ => None,
    }
}

/// Returns the index of the argument that is a regular expression; `None` if the function has no such argument.
pub(in crate::rego) fn pattern_argument(function: &str) -> Option<usize> {
    match function {
        "regex.replace" => Some(1),
        "regex.find_all_string_submatch_n" | "regex.find_n" | "regex.match" | "regex.split" | "re_match" => Some(0),
        _ => None,
    }
}

/// Returns the arguments with the pattern at `index` translated to the syntax of the regex crate. A pattern that is not valid is
/// an error. The builtin itself handles an argument that is not a string.
pub(super) fn with_pattern(index: usize, values: &[Value]) -> Result<Vec<Value>, String> {
    let mut values = values.to_vec();
    if let Some(value @ Value::String(_)) = values.get_mut(index) {
        *value = read_pattern(value)?;
    }
    Ok(values)
}

/// Refuses a pattern that is not a valid regular expression.
pub(in crate::rego) fn pattern_is_valid(pattern: &Value) -> Result<(), String> {
    read_pattern(pattern).map(drop)
}

fn read_pattern(pattern: &Value) -> Result<Value, String> {
    let Value::String(text) = pattern else { return Ok(pattern.clone()) };
    allow(text.len() <= MAX_PATTERN, "the regular expression is too long")?;
    let refused = |why: &str| format!("{text:?} is not a valid regular expression{why}");
    let pattern = Value::from(pattern::translated(text).map_err(|why| refused(&format!(": {why}")))?);
    match call("regex.is_valid", std::slice::from_ref(&pattern))? {
        Value::Bool(true) => Ok(pattern),
        _ => Err(refused("")),
    }
}

/// Refuses a text that contains a number with too many digits in its decimal form.
pub(in crate::rego) fn exponents_are_small(text: &str) -> Result<(), String> {
    for (index, _) in text.match_indices(['e', 'E']) {
        let exponent = &text[index + 1..];
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        // regorus ignores underscores.
        let end = digits.find(|character: char| !character.is_ascii_digit() && character != '_');
        let digits: String = digits[..end.unwrap_or(digits.len())].replace('_', "");
        let small = digits.is_empty() || digits.parse().is_ok_and(|exponent: u32| exponent <= MAX_EXPONENT);
        allow(small, "the number is too large")?;
    }
    Ok(())
}

/// Refuses long quantities. The time to parse digits grows with their square, and the deadline does not interrupt it.
fn quantity_is_short(text: &str) -> Result<(), String> {
    allow(text.len() <= MAX_QUANTITY, "the text is too long")?;
    exponents_are_small(text)
}

/// Refuses a text with escapes or special keys. regorus parses a text argument as JSON with its own `Deserialize`: see
/// [`crate::rego::value`].
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

/// Refuses a collection with both sets and objects: OPA sorts sets after objects, regorus before them.
fn order_is_known(values: &[Value]) -> Result<(), String> {
    let any = |is: fn(&Value) -> bool| items(values, 0).is_some_and(|mut items| items.any(is));
    let mixed = any(|item| matches!(item, Value::Set(_))) && any(|item| matches!(item, Value::Object(_)));
    allow(!mixed, "the order of sets and objects is not defined")
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
    // The difference of two infinities is NaN, and the comparison false.
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
    // The text does not grow, so that the occurrences need not be counted.
    if new.len() <= old.len() {
        return Ok(());
    }
    allow(text.matches(old).count().saturating_mul(new.len()).saturating_add(text.len()) <= MAX_TEXT, LONG)
}
