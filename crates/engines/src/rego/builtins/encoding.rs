//! Base64 and URL queries like Go reads and writes them. regorus refuses line ends in base64, and reads an incomplete escape in
//! a query as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::alphabet::{Alphabet, STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use regorus::Value;

use super::functions::Function;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("base64.decode", 1, |values| Ok(map_string(values, |text| decoded(text, &STANDARD).map(Value::from)))),
    ("base64.is_valid", 1, |values| Ok(map_string(values, |text| Some(decoded(text, &STANDARD).is_some().into())))),
    ("base64url.decode", 1, |values| {
        Ok(map_string(values, |text| decoded(&padded(text)?, &URL_SAFE).map(Value::from)))
    }),
    ("urlquery.decode", 1, |values| Ok(map_string(values, |text| unescaped(text).map(Value::from)))),
    ("urlquery.decode_object", 1, |values| Ok(map_string(values, query))),
    ("urlquery.encode", 1, |values| Ok(map_string(values, |text| Some(escaped(text).into())))),
    ("urlquery.encode_object", 1, |values| Ok(encoded_object(values).unwrap_or(Value::Undefined))),
];

fn map_string(values: &[Value], function: impl Fn(&str) -> Option<Value>) -> Value {
    match values.first() {
        Some(Value::String(text)) => function(text).unwrap_or(Value::Undefined),
        _ => Value::Undefined,
    }
}

/// Decodes base64 like Go: line ends are ignored, and unused trailing bits need not be zero.
fn decoded(text: &str, alphabet: &Alphabet) -> Option<String> {
    let config = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical);
    let text: String = text.chars().filter(|character| !matches!(character, '\r' | '\n')).collect();
    let bytes = GeneralPurpose::new(alphabet, config).decode(text).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Adds missing padding. Like OPA, it counts line ends as characters. `None` if no padding fits the length.
fn padded(text: &str) -> Option<String> {
    match text.len() % 4 {
        _ if text.ends_with('=') => Some(text.to_owned()),
        0 => Some(text.to_owned()),
        2 => Some(format!("{text}==")),
        3 => Some(format!("{text}=")),
        _ => None,
    }
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            other => _ = write!(out, "%{other:02X}"),
        }
    }
    out
}

/// Parses a URL query to an object with a list of values for each name.
fn query(text: &str) -> Option<Value> {
    let mut members: BTreeMap<Value, Vec<Value>> = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        // Like Go, refuse semicolons: some software still reads them as separators.
        if pair.contains(';') {
            return None;
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        members.entry(unescaped(name)?.into()).or_default().push(unescaped(value)?.into());
    }
    Some(members.into_iter().map(|(name, values)| (name, Value::from(values))).collect::<BTreeMap<_, _>>().into())
}

fn encoded_object(values: &[Value]) -> Option<Value> {
    let Some(Value::Object(members)) = values.first() else { return None };
    let mut pairs: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for (name, value) in members.iter() {
        let Value::String(name) = name else { return None };
        pairs.insert(
            name,
            match value {
                Value::Array(items) => items.iter().collect(),
                Value::Set(items) => items.iter_sorted().collect(),
                other => vec![other],
            },
        );
    }
    let mut out = Vec::new();
    for (name, values) in pairs {
        for value in values {
            let Value::String(value) = value else { return None };
            out.push(format!("{}={}", escaped(name), escaped(value)));
        }
    }
    Some(out.join("&").into())
}
