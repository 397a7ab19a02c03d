//! Translates regular expressions from OPA's syntax, which is Go's RE2, to the syntax of the regex crate, which regorus uses. In
//! the regex crate `\w`, `\d`, `\s` and `\b` match Unicode, classes nest, and a brace that is not a repetition is an error.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

/// Returns the pattern that matches in the regex crate what `pattern` matches in OPA.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut rest = pattern.chars().peekable();
    let mut out = String::with_capacity(pattern.len());
    let mut posix_classes = PosixClasses { may_end: true };
    while let Some(character) = rest.next() {
        match character {
            '\\' => escape(&mut rest, false, &mut out)?,
            '[' => class(&mut rest, &mut posix_classes, &mut out)?,
            '{' if !is_repetition(&rest) => out += "\\{",
            '{' => {
                check_repetition(&rest)?;
                out.push('{');
            }
            '(' => {
                out.push('(');
                if rest.peek() == Some(&'?') {
                    check_flags(&rest)?;
                }
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

/// Returns true if a brace begins `{2}`, `{2,}` or `{2,3}`. Any other brace is a literal.
fn is_repetition(rest: &Peekable<Chars<'_>>) -> bool {
    // Digits and commas only: if each brace scanned the rest of the pattern, many braces would take quadratic time.
    let inside: String = rest.clone().take_while(|character| character.is_ascii_digit() || *character == ',').collect();
    let closed = rest.clone().nth(inside.len()) == Some('}');
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (least, most) = inside.split_once(',').unwrap_or((&inside, "0"));
    closed && is_number(least) && (most.is_empty() || is_number(most))
}

/// The largest number of repetitions in Go.
const MAX_REPETITION: u32 = 1000;

fn check_repetition(rest: &Peekable<Chars<'_>>) -> Result<(), String> {
    let inside: String = rest.clone().take_while(|character| *character != '}').collect();
    let is_small = |number: &str| number.is_empty() || number.parse().is_ok_and(|number: u32| number <= MAX_REPETITION);
    if inside.split(',').all(is_small) { Ok(()) } else { Err(format!("{{{inside}}} repeats too often")) }
}

/// Refuses flags that Go does not have: in the regex crate they could change the meaning of the pattern.
fn check_flags(rest: &Peekable<Chars<'_>>) -> Result<(), String> {
    let flags: String =
        rest.clone().skip(1).take_while(|character| character.is_ascii_alphabetic() || *character == '-').collect();
    match rest.clone().nth(1 + flags.len()) {
        Some(':' | ')') if flags.contains(|flag| !"imsU-".contains(flag)) => {
            Err(format!("(?{flags}) has an unknown flag"))
        }
        _ => Ok(()),
    }
}

/// Translates an escape. The backslash has been read.
fn escape(rest: &mut Peekable<Chars<'_>>, in_class: bool, out: &mut String) -> Result<(), String> {
    let Some(character) = rest.next() else { return Err("it ends with a backslash".into()) };
    let ascii = match character {
        'd' | 'D' => "0-9",
        'w' | 'W' => "0-9A-Za-z_",
        's' | 'S' => "\\t\\n\\f\\r ",
        'b' if !in_class => {
            *out += "(?-u:\\b)";
            return Ok(());
        }
        'Q' => {
            quoted(rest, out);
            return Ok(());
        }
        'C' => return Err("\\C is not supported".into()),
        // Word boundaries in the regex crate, literals in Go.
        '<' | '>' => {
            out.push(character);
            return Ok(());
        }
        // The braces belong to the escape: `\p{L}`, `\x{1F600}`.
        'p' | 'P' | 'x' if rest.peek() == Some(&'{') => {
            out.push('\\');
            out.push(character);
            for inside in rest.by_ref() {
                out.push(inside);
                if inside == '}' {
                    return Ok(());
                }
            }
            return Err("a brace is not closed".into());
        }
        _ => {
            out.push('\\');
            out.push(character);
            return Ok(());
        }
    };
    let not = if character.is_ascii_uppercase() { "^" } else { "" };
    // Inside of a class, the regex crate reads this as a nested class.
    _ = write!(out, "[{not}{ascii}]");
    Ok(())
}

/// Translates the text between `\Q` and `\E`, in which all characters are literals.
fn quoted(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    while let Some(character) = rest.next() {
        if character == '\\' && rest.peek() == Some(&'E') {
            rest.next();
            return;
        }
        if character.is_ascii_punctuation() && character != '<' && character != '>' {
            out.push('\\');
        }
        out.push(character);
    }
}

fn class(rest: &mut Peekable<Chars<'_>>, posix_classes: &mut PosixClasses, out: &mut String) -> Result<(), String> {
    out.push('[');
    if rest.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    // A closing bracket at the beginning of a class is a literal.
    if rest.next_if_eq(&']').is_some() {
        *out += "\\]";
    }
    while let Some(character) = rest.next() {
        match character {
            ']' => {
                out.push(']');
                return Ok(());
            }
            '\\' => escape(rest, true, out)?,
            '[' if rest.peek() == Some(&':') => posix_classes.translate(rest, out)?,
            '[' => *out += "\\[",
            // `&&` and `~~` are operators in the regex crate.
            '&' | '~' => {
                out.push('\\');
                out.push(character);
            }
            '-' if rest.peek() == Some(&'-') => *out += "\\-",
            other => out.push(other),
        }
    }
    Err("a class is not closed".into())
}

/// The names of the POSIX classes.
const NAMES: &[&str] = &[
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];
/// The length of the longest name with its delimiters, without the first bracket: `:^xdigit:]`.
const MAX_NAME_LENGTH: usize = 10;

/// The state of the search for POSIX classes.
struct PosixClasses {
    /// False after a search has found no further `:]` in the pattern.
    may_end: bool,
}

impl PosixClasses {
    /// Translates `[:alpha:]`. Go reads all text before the next `:]` as the name, and refuses an unknown name. Without a `:]`
    /// the bracket is a literal.
    fn translate(&mut self, rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
        let text: String = rest.clone().take(MAX_NAME_LENGTH).collect();
        let name = text.get(1..).and_then(|text| text.split_once(":]")).map(|(name, _)| name);
        if let Some(name) = name.filter(|name| NAMES.contains(&name.strip_prefix('^').unwrap_or(name))) {
            _ = write!(out, "[:{name}:]");
            rest.nth(name.len() + 2);
            return Ok(());
        }
        // The result of a failed search is kept: otherwise many brackets would take quadratic time.
        self.may_end = self.may_end && rest.clone().skip(1).zip(rest.clone().skip(2)).any(|pair| pair == (':', ']'));
        if self.may_end {
            let start: String = text.chars().take(MAX_NAME_LENGTH).collect();
            return Err(format!("[{start}… is not a character class"));
        }
        *out += "\\[";
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_same_texts_as_in_go() {
        for (pattern, expected) in [
            ("^[a-z]+$", "^[a-z]+$"),
            (r"^\d+\.\w*\S$", r"^[0-9]+\.[0-9A-Za-z_]*[^\t\n\f\r ]$"),
            (r"[\d.-]", "[[0-9].-]"),
            (r"[^\W_]", "[^[^0-9A-Za-z_]_]"),
            (r"\bword\b", r"(?-u:\b)word(?-u:\b)"),
            ("[[]", r"[\[]"),
            ("[]a]", r"[\]a]"),
            ("[a&&b~~c]", r"[a\&\&b\~\~c]"),
            ("[[:alpha:]_]", "[[:alpha:]_]"),
            ("[[:^alpha:][:xdigit:]]", "[[:^alpha:][:xdigit:]]"),
            ("[[:]a]", r"[\[:]a]"),
            ("[[:a][[:b]", r"[\[:a][\[:b]"),
            ("[[:digit:]][[:]", r"[[:digit:]][\[:]"),
            ("a{2}b{2,}c{2,3}", "a{2}b{2,}c{2,3}"),
            ("a{b}{,2}", r"a\{b}\{,2}"),
            (r"\Qa.b\E.", r"a\.b."),
            (r"\<a\>", "<a>"),
            (r"^\p{L}+\P{Greek}\pN$", r"^\p{L}+\P{Greek}\pN$"),
            (r"\x{1F600}{2}\x41[\p{Lu}\x{41}]", r"\x{1F600}{2}\x41[\p{Lu}\x{41}]"),
            ("a{1000,1000}{1,2,3}{1", r"a{1000,1000}\{1,2,3}\{1"),
            ("(?i)a(?:b)(?P<n>c)", "(?i)a(?:b)(?P<n>c)"),
        ] {
            assert_eq!(translated(pattern).as_deref(), Ok(expected), "{pattern}");
        }
        // As in Go, a name ends at the next `:]`, even if that is in another class.
        let names = ["[[:foo:]]", "[[:a-z:]]", "[[::]]", "[[:]:]]", "[[:ALPHA:]]", "[[:^:]]", "[[:ü:]]", "[[:a]b[c:]"];
        for wrong in ["a\\", "[a", "(?x) a", r"\C", r"\p{L", "a{1001}", "a{1,1001}"].into_iter().chain(names) {
            assert!(translated(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn long_patterns_are_translated_in_linear_time() {
        let started = std::time::Instant::now();
        for piece in ["{", "{1", "[:", "(?i", "[[:a:]"] {
            for (begin, end) in [("", ""), ("[", ""), ("[", ":]"), ("[[:alpha:]", "")] {
                _ = translated(&format!("{begin}{}{end}", piece.repeat((64 << 10) / piece.len())));
            }
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
    }
}
