//! Regular expressions: `find`, `findAll`. Patterns are those of RE2; the little that the regex crate reads in another way
//! is translated.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use cel::common::types::{INT_TYPE, STRING_TYPE};
use cel::common::value::CowVal;
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

use super::argument::{Result, give_text, give_texts, int, text};
use super::overload::method;

/// The largest program that a pattern compiles to, in bytes.
const MAX_PROGRAM: usize = 2 * 1024 * 1024;
/// The longest pattern, in bytes, and the longest that is kept compiled.
const MAX_PATTERN: usize = 16 * 1024;
const MAX_KEPT_PATTERN: usize = 1024;
/// How many characters the longest name of a class has at most, with its brackets and colons.
const MAX_CLASS: usize = 16;
/// The most patterns that are kept compiled.
const MAX_KEPT: usize = 256;

/// Patterns are mostly literals: compiling one anew for each evaluation would be most of its time.
static COMPILED: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    method(environment, STRING_TYPE, "find", vec![STRING_TYPE], |arguments| {
        let pattern = compile("find", text(&arguments, 1)?)?;
        give_text(pattern.find(text(&arguments, 0)?).map_or("", |found| found.as_str()))
    })?;
    method(environment, STRING_TYPE, "findAll", vec![STRING_TYPE], |arguments| find_all(&arguments, -1))?;
    method(environment, STRING_TYPE, "findAll", vec![STRING_TYPE, INT_TYPE], |arguments| {
        find_all(&arguments, int(&arguments, 2)?)
    })
}

/// A negative limit is none.
fn find_all<'b, 'v>(arguments: &[CowVal<'b, 'v>], limit: i64) -> Result<CowVal<'b, 'v>> {
    let pattern = compile("findAll", text(arguments, 1)?)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    give_texts(pattern.find_iter(text(arguments, 0)?).take(limit).map(|found| found.as_str()))
}

pub(super) fn compile(name: &str, pattern: &str) -> Result<Regex> {
    if pattern.len() > MAX_PATTERN {
        let why = format!("the pattern is longer than {MAX_PATTERN} bytes");
        return Err(ExecutionError::function_error(name, why));
    }
    if let Some(regex) = COMPILED.lock().unwrap_or_else(PoisonError::into_inner).get(pattern) {
        return Ok(regex.clone());
    }
    // Without the lock: nobody else is to wait for this.
    let regex = RegexBuilder::new(&translate(pattern))
        .size_limit(MAX_PROGRAM)
        .build()
        .map_err(|error| ExecutionError::function_error(name, format!("the pattern {pattern:?}: {error}")))?;
    if pattern.len() <= MAX_KEPT_PATTERN {
        let mut kept = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(pattern.to_owned(), regex.clone());
    }
    Ok(regex)
}

/// Where a class with a name, such as `[:alpha:]`, ends.
fn class_end(text: &str) -> Option<usize> {
    let end = text.find(":]")?;
    let name = text.get(2..end)?.trim_start_matches('^');
    name.chars().all(|character| character.is_ascii_alphabetic()).then_some(end + 2)
}

/// The first so many characters.
fn start(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| &text[..end])
}

/// RE2's `\d`, `\s`, `\w` and `\b` know ASCII only, its classes have no operators, and it has `\Q…\E`.
fn translate(pattern: &str) -> String {
    let mut translated = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(first) = rest.chars().next() {
        let second = rest[first.len_utf8()..].chars().next();
        let (taken, replacement) = match (first, second) {
            ('\\', Some('Q')) if !in_class => {
                let literal = rest[2..].split("\\E").next().unwrap_or_default();
                let end = 2 + literal.len();
                translated += &regex::escape(literal);
                rest = rest[end..].strip_prefix("\\E").unwrap_or(&rest[end..]);
                continue;
            }
            ('\\', Some(escaped)) => match (escaped, in_class) {
                ('d', false) => (2, Some("[0-9]")),
                ('d', true) => (2, Some("0-9")),
                ('D', _) => (2, Some("[^0-9]")),
                ('w', false) => (2, Some("[0-9A-Za-z_]")),
                ('w', true) => (2, Some("0-9A-Za-z_")),
                ('W', _) => (2, Some("[^0-9A-Za-z_]")),
                ('s', false) => (2, Some(r"[\t\n\f\r ]")),
                ('s', true) => (2, Some(r"\t\n\f\r ")),
                ('S', _) => (2, Some(r"[^\t\n\f\r ]")),
                ('b', false) => (2, Some(r"(?-u:\b)")),
                _ => (1 + escaped.len_utf8(), None),
            },
            ('[', _) if !in_class => {
                in_class = true;
                // A bracket that comes first is no end.
                let length = 1 + usize::from(second == Some('^'));
                if rest[length..].starts_with(']') {
                    translated += &rest[..length];
                    rest = &rest[length + 1..];
                    translated += r"\]";
                    continue;
                }
                (length, None)
            }
            ('[', Some(':')) => match class_end(start(rest, MAX_CLASS)) {
                Some(end) => (end, None),
                None => (1, Some(r"\[")),
            },
            ('[', _) => (1, Some(r"\[")),
            ('&', _) if in_class => (1, Some(r"\&")),
            ('~', _) if in_class => (1, Some(r"\~")),
            (']', _) => {
                in_class = false;
                (1, None)
            }
            _ => (first.len_utf8(), None),
        };
        translated += replacement.unwrap_or(&rest[..taken]);
        rest = &rest[taken..];
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_re2() {
        for (pattern, text, matches) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.]+$", "a_1.", true),
            (r"^\w$", "ü", false),
            (r"^\W$", "ü", true),
            (r"^[^\s]$", "\u{a0}", true),
            (r"^[[a]+$", "a[", true),
            (r"^[a-z&&b]+$", "a&b", true),
            (r"^[]a]+$", "]a", true),
            (r"^[^]a]+$", "]", false),
            (r"^[[:alpha:]\d]+$", "a1", true),
            (r"^\Qa.b\E+$", "a.bb", true),
            (r"^\Qa.b", "axb", false),
            (r"\bfoo\b", "a foo b", true),
            (r"^\\d$", r"\d", true),
        ] {
            assert_eq!(compile("matches", pattern).unwrap().is_match(text), matches, "{pattern} {text}");
        }
        assert!(
            compile("matches", "(").is_err() && compile("matches", r"\").is_err() && compile("matches", "[").is_err()
        );
        assert!(compile("matches", "((a{100}){100}){100}").is_err(), "bombs are refused");
    }

    #[test]
    fn long_patterns_are_refused_and_those_less_long_are_not_kept() {
        let is_kept = |pattern: &str| COMPILED.lock().unwrap().contains_key(pattern);
        for (length, compiles, kept) in [(1000, true, true), (1025, true, false), (MAX_PATTERN + 1, false, false)] {
            let pattern = "a".repeat(length);
            assert_eq!((compile("matches", &pattern).is_ok(), is_kept(&pattern)), (compiles, kept), "{length}");
        }
        // Each would search the rest.
        assert_eq!(translate(&format!("[{}ü:]", "[:".repeat(9))), format!("[{}ü:]", r"\[:".repeat(9)));
    }
}
