//! Two layouts that OPA reads otherwise than regorus, written out as OPA reads them: a parenthesis that begins a line is a
//! statement of its own, not the arguments of what ends the line before; and a second body of a set rule is another rule with
//! the same head. Lines keep their numbers.

use regorus::unstable::{Lexer, Source, Span, Token, TokenKind};

use super::bounds::MAX_COLUMN;
use super::syntax::at;
use crate::CompileError;

/// Words after which an expression begins, so that a parenthesis is part of it.
const BEFORE_EXPRESSIONS: &[&str] =
    &["not", "in", "if", "contains", "else", "with", "as", "some", "every", "default", "import", "package"];

#[derive(Default)]
struct Layout {
    edits: Vec<(usize, String)>,
    depth: usize,
    /// The token before: its end, its line, whether it is a name or an index, whether it closes a body.
    previous: Option<Previous>,
    rule: Option<RuleHead>,
}

struct Previous {
    end: usize,
    line: u32,
    callable: bool,
    operand: bool,
    brace: bool,
}

/// The rule that is being read.
struct RuleHead {
    start: usize,
    /// Where its first body begins.
    body: Option<usize>,
    has_key: bool,
    /// A value or arguments: regorus knows chained bodies of such rules.
    has_more: bool,
}

/// The source as OPA reads it, if that needs to be said differently.
pub(super) fn written_out(source: &Source) -> Result<Option<String>, CompileError> {
    let mut lexer = Lexer::new(source);
    lexer.set_max_col(MAX_COLUMN);
    let mut layout = Layout::default();
    loop {
        let token = lexer.next_token().map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
        if matches!(token.0, TokenKind::Eof) {
            break;
        }
        layout.take(&token, source.contents())?;
    }
    if layout.edits.is_empty() {
        return Ok(None);
    }
    let mut text = source.contents().clone();
    for (place, insertion) in layout.edits.iter().rev() {
        text.insert_str(*place, insertion);
    }
    Ok(Some(text))
}

impl Layout {
    fn take(&mut self, Token(kind, span): &Token, contents: &str) -> Result<(), CompileError> {
        let text = span.text();
        let is_name = matches!(kind, TokenKind::Ident);
        let symbol = if matches!(kind, TokenKind::Symbol | TokenKind::Ident) { text } else { "" };
        if symbol == "(" {
            self.separate(span);
        }
        if self.depth == 0 {
            self.head(span, symbol, is_name, contents)?;
        }
        match symbol {
            "{" | "[" | "(" | "set(" => self.depth += 1,
            "}" | "]" | ")" => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        let keyword = BEFORE_EXPRESSIONS.contains(&symbol);
        self.previous = Some(Previous {
            end: span.end as usize,
            line: span.line,
            callable: (is_name && !keyword) || symbol == "]",
            operand: !keyword && (!matches!(kind, TokenKind::Symbol) || matches!(symbol, "}" | "]" | ")")),
            brace: symbol == "}",
        });
        Ok(())
    }

    /// Ends the statement before a parenthesis that begins a line.
    fn separate(&mut self, parenthesis: &Span) {
        if let Some(previous) =
            self.previous.as_ref().filter(|previous| previous.callable && previous.line != parenthesis.line)
        {
            self.edits.push((previous.end, ";".to_owned()));
        }
    }

    fn head(&mut self, span: &Span, symbol: &str, is_name: bool, contents: &str) -> Result<(), CompileError> {
        let start = span.start as usize;
        let after = self.previous.as_ref();
        let begins = after.is_none_or(|previous| previous.operand && (previous.brace || previous.line != span.line));
        if is_name && begins && symbol != "else" {
            self.rule = Some(RuleHead { start, body: None, has_key: false, has_more: false });
            return Ok(());
        }
        let Some(rule) = &mut self.rule else { return Ok(()) };
        match (symbol, rule.body) {
            ("[", None) => rule.has_key = true,
            ("(" | "=" | ":=" | "if" | "contains", None) => rule.has_more = true,
            ("{", None) if after.is_some_and(|previous| previous.operand) => rule.body = Some(start),
            ("{", Some(body)) if rule.has_key && !rule.has_more && after.is_some_and(|previous| previous.brace) => {
                let head = &contents[rule.start..body];
                if head.contains('#') {
                    let message = "a set rule has a second body: write it as a rule of its own";
                    return Err(CompileError::Unsupported(at(span, message)));
                }
                self.edits.push((start, head.replace(['\n', '\r'], " ")));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let source = Source::from_contents("policy.rego".into(), text.into()).unwrap();
        written_out(&source).unwrap().unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn a_parenthesis_that_begins_a_line_is_a_statement() {
        assert_eq!(written("p { x := input.a\n  (x == 1) }"), "p { x := input.a;\n  (x == 1) }");
        assert_eq!(written("p { x := input.a[0]\n\n(x == 1) }"), "p { x := input.a[0];\n\n(x == 1) }");
        for same in ["p { x := f(1) }", "p { x :=\n(1 + 2) }", "p { not\n(x) }", "p { f(\n(1 + 2)) }", "p if\n(x == 1)"]
        {
            assert_eq!(written(same), same);
        }
    }

    #[test]
    fn a_second_body_of_a_set_rule_is_another_rule() {
        assert_eq!(written("p[x] { x := 1 } { x := 2 }"), "p[x] { x := 1 } p[x] { x := 2 }");
        assert_eq!(
            written("a = {1}\nv[{\"msg\": m}] {\n  m := \"a\"\n} {\n  m := {\"b\"}\n}\nq[x] { x := 1 }"),
            "a = {1}\nv[{\"msg\": m}] {\n  m := \"a\"\n} v[{\"msg\": m}] {\n  m := {\"b\"}\n}\nq[x] { x := 1 }"
        );
        for same in ["p { a } { b }", "p[x] = y { y := 1; x := 2 } { y := 2; x := 3 }", "f(x) { x } { not x }"] {
            assert_eq!(written(same), same);
        }
    }
}
