//! Limits on the text of an expression, checked before it is parsed. cel's parser and all functions that walk its syntax trees
//! are recursive, and a stack overflow would end the process.

mod string;

use crate::CompileError;

/// The largest expression of a policy, in bytes.
pub(crate) const MAX_SOURCE: usize = 16 * 1024;
/// The deepest nesting of brackets, braces and parentheses.
const MAX_NESTING: usize = 24;
/// The longest chain of operators, fields, indexes and calls at one level of nesting. `&&` and `||` end a chain, because the
/// parser balances their trees.
const MAX_CHAIN: usize = 64;
/// The largest number of conditional operators at one level of nesting.
const MAX_CONDITIONALS: usize = 32;

#[derive(Clone, Copy, Default)]
struct Level {
    chain: usize,
    conditionals: usize,
}

/// Refuses an expression that is larger than [`MAX_SOURCE`] or nested too deep.
pub(crate) fn check(source: &str) -> Result<(), CompileError> {
    check_within(MAX_SOURCE, source)
}

/// Refuses an expression that is larger than `max` bytes or nested too deep.
pub(super) fn check_within(max: usize, source: &str) -> Result<(), CompileError> {
    if source.len() > max {
        let size = source.len();
        return Err(CompileError::Unsupported(format!("it has {size} bytes; at most {max} are allowed")));
    }
    let mut outer = Vec::new();
    let mut level = Level::default();
    let bytes = source.as_bytes();
    let mut position = 0;
    while let Some(&byte) = bytes.get(position) {
        let next = bytes.get(position + 1).copied();
        position += match (byte, next) {
            (b'"' | b'\'', _) => string::length(bytes, position)
                .ok_or_else(|| CompileError::Invalid(format!("byte {position}: the string is not valid")))?,
            (b'/', Some(b'/')) => rest_of_line(bytes, position),
            (b'&', Some(b'&')) | (b'|', Some(b'|')) => {
                level.chain = 0;
                2
            }
            (b'(' | b'[' | b'{', _) => {
                level.chain += 1;
                outer.push(std::mem::take(&mut level));
                // In `[?` the question mark is not the conditional operator, but marks an optional element.
                if next == Some(b'?') { 2 } else { 1 }
            }
            (b'.', Some(b'?')) => {
                level.chain += 1;
                2
            }
            (b')' | b']' | b'}', _) => {
                level = outer.pop().unwrap_or_default();
                1
            }
            (b',', _) => {
                level = Level::default();
                1
            }
            (b'?', _) => {
                level.conditionals += 1;
                level.chain = 0;
                1
            }
            (b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'!' | b'<' | b'>' | b'=', _) => {
                level.chain += 1;
                1
            }
            // `in` is the only operator that is a word.
            (b'i', Some(b'n')) if !in_word(bytes, position) => {
                level.chain += 1;
                2
            }
            _ => 1,
        };
        let too_much = if outer.len() > MAX_NESTING {
            format!("brackets are nested deeper than {MAX_NESTING} levels")
        } else if level.chain > MAX_CHAIN {
            format!("a part of it has more than {MAX_CHAIN} operators")
        } else if level.conditionals > MAX_CONDITIONALS {
            format!("it has more than {MAX_CONDITIONALS} conditional operators in a row")
        } else {
            continue;
        };
        return Err(CompileError::Unsupported(format!("byte {position}: {too_much}")));
    }
    Ok(())
}

/// Returns true if the previous byte belongs to a name.
fn in_word(bytes: &[u8], position: usize) -> bool {
    position > 0 && (bytes[position - 1].is_ascii_alphanumeric() || bytes[position - 1] == b'_')
}

fn rest_of_line(bytes: &[u8], start: usize) -> usize {
    bytes[start..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_expressions_are_accepted() {
        for source in [
            "object.spec.replicas <= 5",
            "has(object.metadata.labels) && object.metadata.labels.all(k, k in ['a', 'b'] || k.startsWith('((((('))",
            &vec!["object.spec.template.spec.hostNetwork == false"; 200].join(" && "),
            &format!("object.a in [{}]", "'x', ".repeat(500)),
            &format!("'{}' == r'\\' + \"\"\"{}\"\"\"", "(\\'".repeat(99), "[\"[".repeat(99)),
            &format!("true // {}", "(".repeat(99)),
            &vec!["object.?spec.?replicas.orValue(0) == list[?0].orValue(1)"; 20].join(" && "),
        ] {
            assert_eq!(check(source), Ok(()), "{source}");
        }
    }

    #[test]
    fn excessive_nesting_and_size_are_refused() {
        for source in [
            "(".repeat(30),
            "[".repeat(30),
            "!".repeat(200),
            "-".repeat(200),
            format!("1{}", "+1".repeat(200)),
            format!("a{}", ".b".repeat(200)),
            format!("a{}", "[0]".repeat(200)),
            "a?b:".repeat(200),
            format!("a{}", " in b".repeat(200)),
            "x".repeat(17 * 1024),
        ] {
            assert!(matches!(check(&source), Err(CompileError::Unsupported(_))), "{}", &source[..20]);
        }
    }

    /// The lexer continues after the quote of an invalid string, so that the rest is not a string to the parser.
    #[test]
    fn long_sums_in_invalid_strings_are_refused() {
        let sum = format!("0{}", "+0".repeat(7000));
        for (source, invalid) in [
            (format!("'\n{sum}"), true),
            (format!("'{sum}"), true),
            (format!("\"\\z{sum}\""), true),
            (format!("\"\\\n{sum}\""), true),
            (format!("'\\u12{sum}'"), true),
            (format!("\"\"\"{sum}"), true),
            (format!("1r'\\' + {sum}'"), true),
            (format!("ar'\\'' + {sum}"), false),
            (format!("br'\\' + {sum}"), false),
            (format!("'''\n''' + {sum}"), false),
        ] {
            match check(&source) {
                Err(CompileError::Invalid(_)) if invalid => {}
                Err(CompileError::Unsupported(_)) if !invalid => {}
                other => panic!("{}: {other:?}", &source[..20]),
            }
        }
    }
}
