//! Limits on the tokens of a source, checked before it is parsed. regorus' parser backtracks: its time doubles with each
//! level of nested brackets. Its syntax trees are walked and dropped recursively, so that a deep tree overflows the stack.

use std::num::NonZeroU32;

use regorus::unstable::{Lexer, Source, Token, TokenKind};

use crate::CompileError;

/// The largest source, in bytes. Constraint templates in use are smaller than 64 KiB.
pub(super) const MAX_SOURCE: usize = 256 * 1024;
/// The longest line, in columns: the whole source may be one line.
#[allow(clippy::cast_possible_truncation, reason = "256 KiB are less than 4 GiB")]
pub(super) const MAX_COLUMN: NonZeroU32 = NonZeroU32::new(MAX_SOURCE as u32 + 1).unwrap();
/// The deepest nesting of brackets, braces and parentheses.
const MAX_NESTING: usize = 12;
/// The longest chain of operators, fields and indexes in one expression. Each one is a level of the syntax tree.
const MAX_CHAIN: usize = 128;
/// The number of times that the parser may read a literal again, summed over the source. A bracket at depth n costs 2ⁿ.
/// One unit takes about 17 µs in a development build, so the limit is about two seconds.
const MAX_BACKTRACKING: usize = 1 << 17;

/// The version of Rego that a source appears to use, according to its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegoVersion {
    /// The source uses `if` or `contains` as keywords.
    V1,
    /// The source has no keywords of v1.
    V0,
}

#[derive(Default)]
struct Scan {
    /// The lengths of the chains outside of the open brackets, outermost first.
    outer: Vec<usize>,
    chain: usize,
    backtracking: usize,
    version: Option<RegoVersion>,
    /// The previous token: its kind, its line, and true if an expression may end with it.
    previous: Option<(TokenKind, u32, bool)>,
}

/// Checks the nesting and the chains of a source, and detects its version of Rego.
pub(super) fn check(source: &Source) -> Result<RegoVersion, CompileError> {
    let mut lexer = Lexer::new(source);
    lexer.set_max_col(MAX_COLUMN);
    let mut scan = Scan::default();
    loop {
        let token = lexer.next_token().map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
        if matches!(token.0, TokenKind::Eof) {
            return Ok(scan.version.unwrap_or(RegoVersion::V0));
        }
        scan.visit(&token)?;
    }
}

impl Scan {
    fn visit(&mut self, token: &Token) -> Result<(), CompileError> {
        let Token(kind, span) = token;
        let text = span.text();
        let symbol = matches!(kind, TokenKind::Symbol | TokenKind::Ident).then_some(text);
        let (after_operand, line) = self.previous.as_ref().map_or((false, 0), |(_, line, ends)| (*ends, *line));
        match symbol {
            Some("{" | "[" | "(") => {
                // An index, a call or a body continues the operand before it, and adds a level to its tree.
                self.chain = if after_operand { self.chain + 1 } else { self.chain };
                self.outer.push(std::mem::take(&mut self.chain));
                if text != "(" {
                    self.backtracking += 1_usize << self.outer.len().min(MAX_NESTING + 1);
                }
            }
            Some("}" | "]" | ")") => self.chain = self.outer.pop().unwrap_or(0),
            Some("," | ";") => self.chain = 0,
            // On a new line, `not` begins a new statement.
            Some("not") if after_operand && span.line != line => self.chain = 1,
            _ if is_operator(text) && symbol.is_some() => self.chain += 1,
            // An operand after an operand, on a new line, begins a new statement or rule.
            _ if after_operand && span.line != line => self.chain = 0,
            _ => {}
        }
        let too_much = if self.outer.len() > MAX_NESTING {
            Some(format!("brackets are nested deeper than {MAX_NESTING} levels"))
        } else if self.chain > MAX_CHAIN {
            Some(format!("an expression has more than {MAX_CHAIN} parts; split it"))
        } else if self.backtracking > MAX_BACKTRACKING {
            Some("the source has too many nested brackets".to_owned())
        } else {
            None
        };
        if let Some(message) = too_much {
            return Err(CompileError::Unsupported(super::syntax::at(span, &message)));
        }
        if self.version.is_none() && symbol.is_some() {
            self.detect_version(text);
        }
        let begins = matches!(symbol, Some("{" | "[" | "(" | "," | ";")) || symbol.is_some_and(is_operator);
        self.previous = Some((kind.clone(), span.line, !begins));
        Ok(())
    }

    /// Detects v1 by a name followed by `if` or `contains`. In v0, a name follows a name only if a keyword is imported.
    fn detect_version(&mut self, text: &str) {
        let after_name = self.previous.as_ref().is_some_and(|(kind, _, ends)| *ends && !matches!(kind, TokenKind::Eof));
        if after_name && matches!(text, "if" | "contains") {
            self.version = Some(RegoVersion::V1);
        }
    }
}

fn is_operator(text: &str) -> bool {
    matches!(
        text,
        "." | "+"
            | "-"
            | "*"
            | "/"
            | "%"
            | "&"
            | "|"
            | "="
            | ":="
            | "=="
            | "!="
            | "<"
            | "<="
            | ">"
            | ">="
            | "in"
            | "not"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<RegoVersion, CompileError> {
        check(&Source::from_contents("policy.rego".into(), text.into()).unwrap())
    }

    #[test]
    fn ordinary_sources_are_accepted() {
        let source = "package p\nviolation[{\"msg\": msg}] {\n  x := {y | y := [z | z := input.a[_]][_]}\n  count(x) > 1\n  \
                      msg := sprintf(\"%v\", [x])\n}\n";
        assert_eq!(checked(source), Ok(RegoVersion::V0));
        assert_eq!(checked(&format!("package p\n{}", source.repeat(500))), Ok(RegoVersion::V0));
        assert_eq!(checked("package p\ndeny contains msg if { msg := \"no\" }"), Ok(RegoVersion::V1));
        assert_eq!(checked("package p\nv { contains(input.a, \"b\") }"), Ok(RegoVersion::V0));
    }

    #[test]
    fn excessive_nesting_is_refused_with_its_position() {
        let nested = |open: &str, close: &str| format!("package p\nv = {}1{}", open.repeat(30), close.repeat(30));
        for (source, expected) in [
            (nested("[", "]"), "nested deeper"),
            (nested("{", "}"), "nested deeper"),
            (nested("(", ")"), "nested deeper"),
            (format!("package p\nv = {}", vec!["1"; 4000].join("\n+")), "parts"),
            (format!("package p\nv = input{}", ".a\n".repeat(4000)), "parts"),
            (format!("package p\nv = input{}", "[0]\n".repeat(4000)), "parts"),
            (format!("package p\nv = {}1", "- ".repeat(400)), "parts"),
            (format!("package p\nv = [{}]", format!("{}1{},\n", "[".repeat(9), "]".repeat(9)).repeat(999)), "too many"),
        ] {
            let Err(CompileError::Unsupported(message)) = checked(&source) else { panic!("{}", &source[..60]) };
            assert!(message.contains(expected) && message.starts_with("line "), "{message}");
        }
    }
}
