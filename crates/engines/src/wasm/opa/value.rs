//! The text form of values in compiled Rego: JSON with sets, and with objects whose keys are any values.

use std::collections::{BTreeMap, BTreeSet};

use regorus::Value;

use crate::rego::value::Plain;

/// The maximum nesting depth of a value: that of a review, and some levels around it.
const MAX_DEPTH: usize = proviso_core::review::MAX_NESTING + 8;

/// Parses a value that a guest wrote.
pub(super) fn read(text: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let mut reader = Reader { text, offset: 0 };
    let value = reader.value(0)?;
    if reader.peek().is_some() { Err(reader.unexpected()) } else { Ok(value) }
}

/// Writes a value as text that a guest can parse.
pub(super) fn write(value: &Value) -> Result<String, String> {
    let mut text = String::new();
    append(value, &mut text, 0)?;
    Ok(text)
}

struct Reader<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Skips whitespace and returns the next byte without consuming it.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.rest().trim_start_matches([' ', '\t', '\n', '\r']);
        self.offset = self.text.len() - rest.len();
        rest.bytes().next()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.offset..]
    }

    fn unexpected(&self) -> String {
        match self.rest().chars().next() {
            Some(character) => format!("unexpected {character:?} at {}", self.offset),
            None => "the text ends too early".into(),
        }
    }

    /// Consumes the token if it comes next. Returns true if the token was consumed.
    fn consume(&mut self, token: &str) -> bool {
        let is_next = self.peek().is_some() && self.rest().starts_with(token);
        if is_next {
            self.offset += token.len();
        }
        is_next
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err("the value is nested too deeply".into());
        }
        match self.peek() {
            Some(b'[') => self.array(depth),
            Some(b'{') => self.set_or_object(depth),
            Some(b's') if self.consume("set()") => Ok(BTreeSet::new().into()),
            Some(b'"') => {
                let length = string_length(self.rest()).ok_or_else(|| self.unexpected())?;
                self.scalar(length)
            }
            Some(_) => {
                let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
                let length = self.rest().bytes().take_while(|byte| is_part(*byte)).count();
                self.scalar(length)
            }
            None => Err(self.unexpected()),
        }
    }

    /// Parses a scalar of this length, which has the same text as in JSON.
    fn scalar(&mut self, length: usize) -> Result<Value, String> {
        let scalar = &self.rest()[..length];
        let Plain(value) = serde_json::from_str(scalar).map_err(|_| self.unexpected())?;
        self.offset += length;
        Ok(value)
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        self.offset += 1;
        let mut items: Vec<Value> = Vec::new();
        if self.consume("]") {
            return Ok(items.into());
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.consume("]") {
                return Ok(items.into());
            }
            self.comma()?;
        }
    }

    /// Parses a set or an object. A colon after the first element marks an object.
    fn set_or_object(&mut self, depth: usize) -> Result<Value, String> {
        self.offset += 1;
        let mut members: BTreeMap<Value, Value> = BTreeMap::new();
        if self.consume("}") {
            return Ok(members.into());
        }
        let first = self.value(depth + 1)?;
        if !self.consume(":") {
            let mut items = BTreeSet::from([first]);
            while !self.consume("}") {
                self.comma()?;
                items.insert(self.value(depth + 1)?);
            }
            return Ok(items.into());
        }
        members.insert(first, self.value(depth + 1)?);
        while !self.consume("}") {
            self.comma()?;
            let key = self.value(depth + 1)?;
            if !self.consume(":") {
                return Err(self.unexpected());
            }
            members.insert(key, self.value(depth + 1)?);
        }
        Ok(members.into())
    }

    fn comma(&mut self) -> Result<(), String> {
        if self.consume(",") { Ok(()) } else { Err(self.unexpected()) }
    }
}

/// Returns the length of the string literal at the beginning of the text, including the quotes, in bytes.
fn string_length(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map(|end| end + 2)
}

fn append(value: &Value, text: &mut String, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("the result is nested too deeply".into());
    }
    match value {
        Value::Array(items) => {
            text.push('[');
            append_separated(items.iter(), text, |item, text| append(item, text, depth + 1))?;
            text.push(']');
        }
        Value::Set(items) if items.is_empty() => text.push_str("set()"),
        Value::Set(items) => {
            text.push('{');
            append_separated(items.iter_sorted(), text, |item, text| append(item, text, depth + 1))?;
            text.push('}');
        }
        Value::Object(members) => {
            text.push('{');
            append_separated(members.iter(), text, |(key, value), text| {
                append(key, text, depth + 1)?;
                text.push(':');
                append(value, text, depth + 1)
            })?;
            text.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&serde_json::to_string(value).map_err(|error| error.to_string())?);
        }
        Value::Undefined => return Err("a part of the result is undefined".into()),
    }
    Ok(())
}

/// Appends the items with commas between them.
fn append_separated<T>(
    items: impl Iterator<Item = T>,
    text: &mut String,
    append: impl Fn(T, &mut String) -> Result<(), String>,
) -> Result<(), String> {
    for (index, item) in items.enumerate() {
        if index > 0 {
            text.push(',');
        }
        append(item, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_value_is_read_back_unchanged() {
        for text in [
            "null",
            "true",
            "-1.5",
            r#""a\"\\ \u00e9é""#,
            "[]",
            "{}",
            "set()",
            r#"{1,"a",[2]}"#,
            r#"{"a":{1:2},[3]:set()}"#,
            r#"[{"b":[null,false]},{{1}}]"#,
        ] {
            let value = read(text.as_bytes()).unwrap();
            let written = write(&value).unwrap();
            assert_eq!(read(written.as_bytes()).unwrap(), value, "{text} became {written}");
        }
    }

    #[test]
    fn a_set_is_not_a_list_and_whitespace_is_ignored() {
        let set = read(b" { 2 , 1 , 2 } ").unwrap();
        assert_eq!(write(&set).unwrap(), "{1,2}");
        assert_ne!(set, read(b"[1,2]").unwrap());
        assert_eq!(write(&read(b"{ \"a\" : 1 }").unwrap()).unwrap(), r#"{"a":1}"#);
    }

    #[test]
    fn malformed_values_are_refused() {
        let deep = "[".repeat(100_000);
        for text in
            ["", "[", "{", "[1", "[1,]", "{1,}", "{1:}", "{1:2,3}", "\"", "\"\\\"", "nul", "1 2", "set", "é", &deep]
        {
            assert!(read(text.as_bytes()).is_err(), "{text:.20}");
        }
        assert!(read(b"\"\xff\"").is_err());
    }
}
