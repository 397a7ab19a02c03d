//! The grammar of AIP-160, by descent.

use super::{Field, Filter, Kind, Pattern};
use crate::body::camel;
use crate::error::Error;

/// The longest filter, in bytes.
const MAX: usize = 4096;

/// How deep parentheses and negations may be nested.
const MAX_DEPTH: usize = 32;

/// What is wrong, and at which byte.
struct Fault {
    at: usize,
    message: String,
}

type Result<T> = std::result::Result<T, Fault>;

impl Filter {
    /// Parses a filter; `None` if the text is empty, which asks for everything.
    pub(crate) fn parse(text: &str, fields: &[Field]) -> std::result::Result<Option<Self>, Error> {
        let refused = |Fault { at, message }| {
            Error::invalid("filter", format!("at character {}: {message}", text[..at].chars().count() + 1))
                .with("position", &(text[..at].chars().count() + 1).to_string())
        };
        if text.len() > MAX {
            return Err(Error::invalid("filter", format!("is longer than {MAX} bytes")));
        }
        if text.trim().is_empty() {
            return Ok(None);
        }
        parse(text, fields).map(Some).map_err(refused)
    }
}

fn parse(text: &str, fields: &[Field]) -> Result<Filter> {
    let mut parser = Parser { text, at: 0, fields };
    let filter = parser.expression(0)?;
    if parser.rest().is_empty() { Ok(filter) } else { parser.fault("nothing is open that could be closed here") }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    fields: &'a [Field],
}

/// What ends a word that is not in quotes.
fn ends_word(letter: char) -> bool {
    letter.is_whitespace() || "()=!<>:,\"'".contains(letter)
}

fn joined(mut parts: Vec<Filter>, join: fn(Vec<Filter>) -> Filter) -> Filter {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            join(parts)
        }
    }
}

impl<'a> Parser<'a> {
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    fn fault<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Fault { at: self.at, message: message.into() })
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    fn keyword(&mut self, word: &str) -> bool {
        let rest = self.rest();
        let found = rest.strip_prefix(word).is_some_and(|after| after.chars().next().is_none_or(ends_word));
        if found {
            self.at += word.len();
        }
        found
    }

    fn expression(&mut self, depth: usize) -> Result<Filter> {
        if depth > MAX_DEPTH {
            return self.fault("is nested too deep");
        }
        let mut parts = vec![self.factor(depth)?];
        // Two factors side by side are both demanded.
        while self.keyword("AND") || !(self.rest().is_empty() || self.rest().starts_with(')')) {
            parts.push(self.factor(depth)?);
        }
        Ok(joined(parts, Filter::And))
    }

    fn factor(&mut self, depth: usize) -> Result<Filter> {
        let mut parts = vec![self.term(depth)?];
        while self.keyword("OR") {
            parts.push(self.term(depth)?);
        }
        Ok(joined(parts, Filter::Or))
    }

    fn term(&mut self, depth: usize) -> Result<Filter> {
        if depth > MAX_DEPTH {
            return self.fault("is nested too deep");
        }
        if self.keyword("NOT") || self.take("-") {
            return Ok(Filter::Not(Box::new(self.term(depth + 1)?)));
        }
        if self.take("(") {
            let filter = self.expression(depth + 1)?;
            return if self.take(")") { Ok(filter) } else { self.fault("a closing parenthesis is missing") };
        }
        self.restriction()
    }

    fn restriction(&mut self) -> Result<Filter> {
        self.rest();
        let start = self.at;
        let words = self.path()?;
        let end = self.at;
        self.rest();
        let operator_at = self.at;
        let (is_has, is_negated) = match () {
            () if self.take("!=") => (false, true),
            () if self.take("=") => (false, false),
            () if self.take(":") => (true, false),
            () if self.take("<") || self.take(">") => {
                self.at = operator_at;
                return self.fault("only =, != and : are supported");
            }
            () => {
                self.at = end;
                return self.fault("a comparison is missing: =, != or :");
            }
        };
        self.rest();
        let value_at = self.at;
        let value = self.value()?;
        let (path, kind) = self.field(start, &words, is_has)?;
        let test = match kind {
            None if value == "*" => Filter::Test(path, Pattern(value)),
            None => {
                return Err(Fault { at: value_at, message: "is no *: of this field only that can be asked".into() });
            }
            Some(Kind::Map) => {
                // `annotations:owner` asks for the key.
                let key = (value != "*").then(|| value.clone());
                Filter::Test(path.into_iter().chain(key).collect(), Pattern("*".to_owned()))
            }
            Some(Kind::Flag) if !["true", "false", "*"].contains(&value.as_str()) => {
                return Err(Fault { at: value_at, message: "is neither true nor false".into() });
            }
            Some(Kind::Enum(values)) if !value.contains('*') && !values.contains(&value.as_str()) => {
                return Err(Fault { at: value_at, message: format!("is none of {}", values.join(", ")) });
            }
            Some(_) => Filter::Test(path, Pattern(value)),
        };
        Ok(if is_negated { Filter::Not(Box::new(test)) } else { test })
    }

    /// The field of this path; no kind where it is a message, which is there or not.
    fn field(&self, at: usize, words: &[String], is_has: bool) -> Result<(Vec<String>, Option<Kind>)> {
        let fault = |message: String| Err(Fault { at, message });
        let camels: Vec<String> = words.iter().map(|word| camel(word)).collect();
        let path = camels.join(".");
        for field in self.fields {
            if field.path == path {
                if matches!(field.kind, Kind::Map) && !is_has {
                    return fault(format!("names a map: name a key of it, as in {path}.owner"));
                }
                let path = camels.clone();
                return Ok((path, Some(field.kind)));
            }
            if matches!(field.kind, Kind::Map) && camels.first().is_some_and(|first| first == field.path) {
                let key = words[1..].join(".");
                return Ok((vec![field.path.to_owned(), key], Some(Kind::Text)));
            }
            if is_has && field.path.starts_with(&format!("{path}.")) {
                return Ok((camels, None));
            }
        }
        let known: Vec<_> = self.fields.iter().map(|field| field.path).collect();
        fault(format!("there is no field {:?} to filter by; there are {}", words.join("."), known.join(", ")))
    }

    fn path(&mut self) -> Result<Vec<String>> {
        let mut words = Vec::new();
        loop {
            let word = self.word('.')?;
            match word {
                Some(word) => words.push(word),
                None => return self.fault("a field is missing"),
            }
            if !self.text[self.at..].starts_with('.') {
                return Ok(words);
            }
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<String> {
        match self.word('\0')? {
            Some(value) => Ok(value),
            None => self.fault("a value is missing"),
        }
    }

    /// A word up to this letter, or a text in quotes; nothing where neither stands here.
    fn word(&mut self, end: char) -> Result<Option<String>> {
        let rest = &self.text[self.at..];
        let Some(quote) = rest.chars().next().filter(|first| *first == '"' || *first == '\'') else {
            let length = rest.find(|letter| letter == end || ends_word(letter)).unwrap_or(rest.len());
            self.at += length;
            return Ok((length > 0).then(|| rest[..length].to_owned()));
        };
        let mut text = String::new();
        let mut letters = rest.char_indices().skip(1);
        while let Some((index, letter)) = letters.next() {
            match letter {
                '\\' => match letters.next() {
                    Some((_, escaped)) => text.push(escaped),
                    None => break,
                },
                letter if letter == quote => {
                    self.at += index + letter.len_utf8();
                    return Ok(Some(text));
                }
                letter => text.push(letter),
            }
        }
        self.fault("the quotes are not closed")
    }
}
