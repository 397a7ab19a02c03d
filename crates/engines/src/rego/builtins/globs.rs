//! `glob.match` like in OPA: the glob is translated to a regular expression. In regorus' implementation `/**/` matches one
//! separator, `^` negates a class, and empty alternatives are not supported.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use regorus::Value;

use super::call::call;
use super::functions::Function;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[("glob.match", 3, glob_match)];

fn glob_match(values: &[Value]) -> Result<Value, String> {
    let [Value::String(pattern), delimiters, text @ Value::String(_)] = values else { return Ok(Value::Undefined) };
    let Some(expression) = separators(delimiters).and_then(|separators| expression(pattern, &separators)) else {
        return Ok(Value::Undefined);
    };
    match call("regex.match", &[expression.into(), text.clone()])? {
        Value::Undefined => Err("the pattern is too large".into()),
        answer => Ok(answer),
    }
}

/// Returns the delimiters: the characters that `*` and `?` do not match. The default is `.`, for an empty list.
fn separators(delimiters: &Value) -> Option<String> {
    let items = match delimiters {
        Value::Null => return Some(String::new()),
        Value::Array(items) if items.is_empty() => return Some(".".into()),
        Value::Array(items) => items,
        _ => return None,
    };
    let character = |item: &Value| match item {
        Value::String(text) => text.chars().next().filter(|first| first.len_utf8() == text.len()),
        _ => None,
    };
    items.iter().map(character).collect()
}

/// Translates a glob to the syntax of the regex crate. `None` if the glob is not valid.
fn expression(pattern: &str, separators: &str) -> Option<String> {
    let one = if separators.is_empty() { ".".into() } else { format!("[^{}]", regex::escape(separators)) };
    let mut out = String::from("^(?s:");
    let mut depth = 0_usize;
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '*' if rest.next_if_eq(&'*').is_some() => out += ".*",
            '*' => _ = write!(out, "{one}*"),
            '?' => out += &one,
            '[' => out += &class(&mut rest)?,
            '{' => {
                depth += 1;
                out += "(?:";
            }
            '}' if depth > 0 => {
                depth -= 1;
                out.push(')');
            }
            ',' if depth > 0 => out.push('|'),
            '\\' => out += &escaped(rest.next()?),
            other => out += &escaped(other),
        }
    }
    out += ")$";
    (depth == 0).then_some(out)
}

fn escaped(character: char) -> String {
    regex::escape(character.encode_utf8(&mut [0; 4]))
}

/// Translates a class: one range, or a list of characters. Only `!` negates a class.
fn class(rest: &mut Peekable<Chars<'_>>) -> Option<String> {
    let not = if rest.next_if_eq(&'!').is_some() { "^" } else { "" };
    let mut inside = Vec::new();
    loop {
        match rest.next()? {
            ']' => break,
            '\\' => inside.push(rest.next()?),
            // A minus after the first character makes a range, which ends with the next character.
            '-' if inside.len() == 1 => {
                let (from, to) = (inside[0], rest.next()?);
                let closed = rest.next() == Some(']');
                return (closed && from <= to).then(|| format!("[{not}{}-{}]", escaped(from), escaped(to)));
            }
            other => inside.push(other),
        }
    }
    let characters: String = inside.into_iter().collect();
    (!characters.is_empty()).then(|| format!("[{not}{}]", regex::escape(&characters)))
}
