//! Regular expressions: `find`, `findAll`. Patterns have the syntax of RE2. Constructs with another meaning in the regex crate
//! are translated.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use cel::common::types::{INT_TYPE, STRING_TYPE};
use cel::common::value::CowVal;
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

use super::argument::{Result, int, return_text, return_texts, text};
use super::overload::method;

/// The largest compiled pattern, in bytes.
const MAX_PROGRAM: usize = 2 * 1024 * 1024;
/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 16 * 1024;
/// The longest pattern in the cache, in bytes.
const MAX_CACHED_PATTERN: usize = 1024;
/// The length of the longest name of a class, with its brackets and colons, in characters.
const MAX_CLASS: usize = 16;
/// The largest number of patterns in the cache.
const MAX_CACHED: usize = 256;

/// The cache of compiled patterns. Most patterns are literals, and their compilation would take most of the time of an
/// evaluation.
static CACHE: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    method(environment, STRING_TYPE, "find", vec![STRING_TYPE], |arguments| {
        let pattern = compile("find", text(&arguments, 1)?)?;
        return_text(pattern.find(text(&arguments, 0)?).map_or("", |found| found.as_str()))
    })?;
    method(environment, STRING_TYPE, "findAll", vec![STRING_TYPE], |arguments| find_all(&arguments, -1))?;
    method(environment, STRING_TYPE, "findAll", vec![STRING_TYPE, INT_TYPE], |arguments| {
        find_all(&arguments, int(&arguments, 2)?)
    })
}

/// Returns all matches, at most `limit`. A negative limit means no limit.
fn find_all<'b, 'v>(arguments: &[CowVal<'b, 'v>], limit: i64) -> Result<CowVal<'b, 'v>> {
    let pattern = compile("findAll", text(arguments, 1)?)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    return_texts(pattern.find_iter(text(arguments, 0)?).take(limit).map(|found| found.as_str()))
}

/// Compiles a pattern, or takes it from the cache. `name` is the function in error messages.
pub(super) fn compile(name: &str, pattern: &str) -> Result<Regex> {
    if pattern.len() > MAX_PATTERN {
        let why = format!("the pattern is longer than {MAX_PATTERN} bytes");
        return Err(ExecutionError::function_error(name, why));
    }
    if let Some(regex) = CACHE.lock().unwrap_or_else(PoisonError::into_inner).get(pattern) {
        return Ok(regex.clone());
    }
    // The pattern is compiled without the lock: other evaluations must not wait for it.
    let regex = RegexBuilder::new(&translate(pattern))
        .size_limit(MAX_PROGRAM)
        .build()
        .map_err(|error| ExecutionError::function_error(name, format!("the pattern {pattern:?}: {error}")))?;
    if pattern.len() <= MAX_CACHED_PATTERN {
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let old = if cache.len() >= MAX_CACHED { std::mem::take(&mut *cache) } else { HashMap::new() };
        cache.insert(pattern.to_owned(), regex.clone());
        drop(cache);
        // The old patterns are freed without the lock.
        drop(old);
    }
    Ok(regex)
}

/// Returns the length of a POSIX class such as `[:alpha:]` at the beginning of a text; `None` if there is none.
fn class_end(text: &str) -> Option<usize> {
    let end = text.find(":]")?;
    let name = text.get(2..end)?.trim_start_matches('^');
    name.chars().all(|character| character.is_ascii_alphabetic()).then_some(end + 2)
}

/// Returns the first `characters` characters of a text.
fn start(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| &text[..end])
}

/// Translates a pattern from RE2 to the regex crate. In RE2 `\d`, `\s`, `\w` and `\b` match ASCII only, classes have no
/// operators, and `\Q…\E` quotes a literal.
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
                // A closing bracket at the beginning of a class is a literal.
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
    fn patterns_match_like_in_re2() {
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
        assert!(compile("matches", "((a{100}){100}){100}").is_err(), "patterns that compile to too much are refused");
    }

    #[test]
    fn long_patterns_are_not_cached_and_longer_patterns_are_refused() {
        let is_cached = |pattern: &str| CACHE.lock().unwrap().contains_key(pattern);
        for (length, compiles, cached) in [(1000, true, true), (1025, true, false), (MAX_PATTERN + 1, false, false)] {
            let pattern = "a".repeat(length);
            assert_eq!((compile("matches", &pattern).is_ok(), is_cached(&pattern)), (compiles, cached), "{length}");
        }
        // The search for the end of a class must not scan the whole pattern for each bracket.
        assert_eq!(translate(&format!("[{}ü:]", "[:".repeat(9))), format!("[{}ü:]", r"\[:".repeat(9)));
    }
}
