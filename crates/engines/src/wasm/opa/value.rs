//! Values as the texts that compiled Rego writes and reads: JSON, and besides it sets, and objects with any keys.

use std::collections::{BTreeMap, BTreeSet};

use regorus::Value;

use crate::rego::value::Plain;

/// How deep values may be nested: as deep as reviews.
const DEPTH: usize = proviso_core::review::MAX_NESTING + 8;

/// Reads a value that a guest wrote.
pub(super) fn read(text: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let mut reader = Reader { text, place: 0 };
    let value = reader.value(0)?;
    if reader.peek().is_some() { Err(reader.unexpected()) } else { Ok(value) }
}

/// Writes a value so that a guest reads the same.
pub(super) fn write(value: &Value) -> Result<String, String> {
    let mut text = String::new();
    append(value, &mut text, 0)?;
    Ok(text)
}

struct Reader<'a> {
    text: &'a str,
    place: usize,
}

impl<'a> Reader<'a> {
    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.rest().trim_start_matches([' ', '\t', '\n', '\r']);
        self.place = self.text.len() - rest.len();
        rest.bytes().next()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.place..]
    }

    fn unexpected(&self) -> String {
        match self.rest().chars().next() {
            Some(character) => format!("unexpected {character:?} at {}", self.place),
            None => "it ends too early".into(),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek().is_some() && self.rest().starts_with(word);
        if found {
            self.place += word.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > DEPTH {
            return Err("it is nested too deep".into());
        }
        match self.peek() {
            Some(b'[') => self.array(depth),
            Some(b'{') => self.set_or_object(depth),
            Some(b's') if self.take("set()") => Ok(BTreeSet::new().into()),
            Some(b'"') => {
                let length = end_of_string(self.rest()).ok_or_else(|| self.unexpected())?;
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

    /// What is the same in JSON.
    fn scalar(&mut self, length: usize) -> Result<Value, String> {
        let scalar = &self.rest()[..length];
        let Plain(value) = serde_json::from_str(scalar).map_err(|_| self.unexpected())?;
        self.place += length;
        Ok(value)
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        self.place += 1;
        let mut items: Vec<Value> = Vec::new();
        if self.take("]") {
            return Ok(items.into());
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take("]") {
                return Ok(items.into());
            }
            self.comma()?;
        }
    }

    /// Which of them it is, the colon after the first element says.
    fn set_or_object(&mut self, depth: usize) -> Result<Value, String> {
        self.place += 1;
        let mut members: BTreeMap<Value, Value> = BTreeMap::new();
        if self.take("}") {
            return Ok(members.into());
        }
        let first = self.value(depth + 1)?;
        if !self.take(":") {
            let mut items = BTreeSet::from([first]);
            while !self.take("}") {
                self.comma()?;
                items.insert(self.value(depth + 1)?);
            }
            return Ok(items.into());
        }
        members.insert(first, self.value(depth + 1)?);
        while !self.take("}") {
            self.comma()?;
            let key = self.value(depth + 1)?;
            if !self.take(":") {
                return Err(self.unexpected());
            }
            members.insert(key, self.value(depth + 1)?);
        }
        Ok(members.into())
    }

    fn comma(&mut self) -> Result<(), String> {
        if self.take(",") { Ok(()) } else { Err(self.unexpected()) }
    }
}

/// How long the string is that the text begins with, with its quotes.
fn end_of_string(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map(|end| end + 2)
}

fn append(value: &Value, text: &mut String, depth: usize) -> Result<(), String> {
    if depth > DEPTH {
        return Err("the answer is nested too deep".into());
    }
    match value {
        Value::Array(items) => {
            text.push('[');
            separated(items.iter(), text, |item, text| append(item, text, depth + 1))?;
            text.push(']');
        }
        Value::Set(items) if items.is_empty() => text.push_str("set()"),
        Value::Set(items) => {
            text.push('{');
            separated(items.iter_sorted(), text, |item, text| append(item, text, depth + 1))?;
            text.push('}');
        }
        Value::Object(members) => {
            text.push('{');
            separated(members.iter(), text, |(key, value), text| {
                append(key, text, depth + 1)?;
                text.push(':');
                append(value, text, depth + 1)
            })?;
            text.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&serde_json::to_string(value).map_err(|error| error.to_string())?);
        }
        Value::Undefined => return Err("a part of the answer is undefined".into()),
    }
    Ok(())
}

fn separated<T>(
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
    fn what_is_written_is_read_again_as_the_same() {
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
    fn sets_are_not_lists_and_spaces_mean_nothing() {
        let set = read(b" { 2 , 1 , 2 } ").unwrap();
        assert_eq!(write(&set).unwrap(), "{1,2}");
        assert_ne!(set, read(b"[1,2]").unwrap());
        assert_eq!(write(&read(b"{ \"a\" : 1 }").unwrap()).unwrap(), r#"{"a":1}"#);
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let deep = "[".repeat(100_000);
        for text in
            ["", "[", "{", "[1", "[1,]", "{1,}", "{1:}", "{1:2,3}", "\"", "\"\\\"", "nul", "1 2", "set", "é", &deep]
        {
            assert!(read(text.as_bytes()).is_err(), "{text:.20}");
        }
        assert!(read(b"\"\xff\"").is_err());
    }
}
