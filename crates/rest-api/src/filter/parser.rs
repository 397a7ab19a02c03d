//! A recursive descent parser for the filter grammar of AIP-160.

use super::{Comparison, Field, Filter, Kind, Operand, Pattern};
use crate::body::to_camel_case;
use crate::error::Error;

/// The maximum length of a filter, in bytes.
const MAX_LENGTH: usize = 4096;

/// The maximum depth of nested parentheses and negations.
const MAX_DEPTH: usize = 32;

/// A syntax error at a byte offset of the filter.
struct SyntaxError {
    at: usize,
    message: String,
}

type Result<T> = std::result::Result<T, SyntaxError>;

impl Filter {
    /// Parses a filter. `None` means that the text is empty, which matches every resource.
    pub(crate) fn parse(text: &str, fields: &[Field]) -> std::result::Result<Option<Self>, Error> {
        let refused = |SyntaxError { at, message }| {
            Error::invalid("filter", format!("at character {}: {message}", text[..at].chars().count() + 1))
                .with("position", &(text[..at].chars().count() + 1).to_string())
        };
        if text.len() > MAX_LENGTH {
            return Err(Error::invalid("filter", format!("is longer than {MAX_LENGTH} bytes")));
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
    if parser.rest().is_empty() { Ok(filter) } else { parser.error("a closing parenthesis has no opening one") }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    fields: &'a [Field],
}

/// The operator of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Has,
    Equal,
    NotEqual,
    Order(Comparison),
}

/// Returns true if this letter ends a word that is not in quotes.
fn ends_word(letter: char) -> bool {
    letter == ':' || ends_value(letter)
}

/// Returns true if this letter ends a value that is not in quotes. A value may have colons, because times have them.
fn ends_value(letter: char) -> bool {
    letter.is_whitespace() || "()=!<>,\"'".contains(letter)
}

/// Parses a time or a number. `None` means that the text is neither.
fn operand(kind: Kind, text: &str) -> Option<Operand> {
    match kind {
        Kind::Time => text.parse().ok().map(Operand::Time),
        _ => text.parse().ok().filter(|number: &f64| number.is_finite()).map(Operand::Number),
    }
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
    /// Skips white space, and returns the rest of the text.
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(SyntaxError { at: self.at, message: message.into() })
    }

    /// Consumes the symbol if it comes next.
    fn take(&mut self, symbol: &str) -> bool {
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    /// Consumes the word if it comes next as a whole word.
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
            return self.error("is nested too deeply");
        }
        let mut parts = vec![self.factor(depth)?];
        // Two factors without an operator between them are joined by AND (AIP-160).
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
            return self.error("is nested too deeply");
        }
        if self.keyword("NOT") || self.take("-") {
            return Ok(Filter::Not(Box::new(self.term(depth + 1)?)));
        }
        if self.take("(") {
            let filter = self.expression(depth + 1)?;
            return if self.take(")") { Ok(filter) } else { self.error("a closing parenthesis is missing") };
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
        let Some(operator) = self.operator() else {
            self.at = end;
            return self.error("a comparison is missing: =, !=, :, <, <=, > or >=");
        };
        self.rest();
        let value_at = self.at;
        let value = self.value()?;
        let (path, kind) = self.field(start, &words, matches!(operator, Operator::Has))?;
        let error = |at: usize, message: &str| Err(SyntaxError { at, message: message.to_owned() });
        if let Some(kind @ (Kind::Time | Kind::Number)) = kind {
            let comparison = match operator {
                // `:*` tests for presence, as for every field.
                Operator::Has | Operator::Equal if value == "*" => return Ok(Filter::Test(path, Pattern(value))),
                Operator::NotEqual if value == "*" => {
                    return Ok(Filter::Not(Box::new(Filter::Test(path, Pattern(value)))));
                }
                Operator::Order(comparison) => comparison,
                Operator::Has | Operator::Equal | Operator::NotEqual => Comparison::Equal,
            };
            let Some(operand) = operand(kind, &value) else {
                let message = match kind {
                    Kind::Time => "is not a time such as \"2026-11-20T09:14:07Z\"",
                    _ => "is not a number",
                };
                return error(value_at, message);
            };
            let compare = Filter::Compare(path, comparison, operand);
            return Ok(if operator == Operator::NotEqual { Filter::Not(Box::new(compare)) } else { compare });
        }
        if matches!(operator, Operator::Order(_)) {
            return error(operator_at, "only =, != and : are supported for this field");
        }
        let test = match kind {
            None if value == "*" => Filter::Test(path, Pattern(value)),
            None => return error(value_at, "must be *: this field can only be tested for presence"),
            Some(Kind::Map) => {
                // `annotations:owner` tests whether the map has the key `owner`.
                let key = (value != "*").then(|| value.clone());
                Filter::Test(path.into_iter().chain(key).collect(), Pattern("*".to_owned()))
            }
            Some(Kind::Flag) if !["true", "false", "*"].contains(&value.as_str()) => {
                return error(value_at, "is neither true nor false");
            }
            Some(Kind::Enum(values)) if !value.contains('*') && !values.contains(&value.as_str()) => {
                return error(value_at, &format!("is none of {}", values.join(", ")));
            }
            Some(_) => Filter::Test(path, Pattern(value)),
        };
        Ok(if operator == Operator::NotEqual { Filter::Not(Box::new(test)) } else { test })
    }

    /// Consumes an operator. `None` means that none comes next.
    fn operator(&mut self) -> Option<Operator> {
        let operators = [
            ("!=", Operator::NotEqual),
            ("<=", Operator::Order(Comparison::LessOrEqual)),
            (">=", Operator::Order(Comparison::GreaterOrEqual)),
            ("<", Operator::Order(Comparison::Less)),
            (">", Operator::Order(Comparison::Greater)),
            ("=", Operator::Equal),
            (":", Operator::Has),
        ];
        operators.into_iter().find(|(symbol, _)| self.take(symbol)).map(|(_, operator)| operator)
    }

    /// Returns the path and kind of the field that `words` name. The kind is `None` for a message, which can only be tested for
    /// presence. `at` is the byte offset of the first word; `is_has` is true for the operator `:`.
    fn field(&self, at: usize, words: &[String], is_has: bool) -> Result<(Vec<String>, Option<Kind>)> {
        let error = |message: String| Err(SyntaxError { at, message });
        let camels: Vec<String> = words.iter().map(|word| to_camel_case(word)).collect();
        let path = camels.join(".");
        for field in self.fields {
            if field.path == path {
                if matches!(field.kind, Kind::Map) && !is_has {
                    return error(format!("names a map: add a key to the path, as in {path}.owner"));
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
        error(format!("there is no field {:?} to filter by: use one of {}", words.join("."), known.join(", ")))
    }

    fn path(&mut self) -> Result<Vec<String>> {
        let mut words = Vec::new();
        loop {
            let word = self.word(|letter| letter == '.' || ends_word(letter))?;
            match word {
                Some(word) => words.push(word),
                None => return self.error("a field is missing"),
            }
            if !self.text[self.at..].starts_with('.') {
                return Ok(words);
            }
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<String> {
        match self.word(ends_value)? {
            Some(value) => Ok(value),
            None => self.error("a value is missing"),
        }
    }

    /// Parses a word up to the first letter that `ends` it, or a text in quotes. `None` means that neither comes next.
    fn word(&mut self, ends: impl Fn(char) -> bool) -> Result<Option<String>> {
        let rest = &self.text[self.at..];
        let Some(quote) = rest.chars().next().filter(|first| *first == '"' || *first == '\'') else {
            let length = rest.find(ends).unwrap_or(rest.len());
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
        self.error("the quotes are not closed")
    }
}
