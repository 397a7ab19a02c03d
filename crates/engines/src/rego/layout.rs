//! Rewrites two layouts that regorus reads differently from OPA. In OPA, a parenthesis that begins a line begins a new statement;
//! regorus reads it as the arguments of a call, if the previous line ends with a name. In OPA, a second body of a set rule is
//! another rule with the same head. The rewritten source keeps the line numbers.

use regorus::unstable::{Lexer, Source, Span, Token, TokenKind};

use super::bounds::MAX_COLUMN;
use super::syntax::at;
use crate::CompileError;

/// Keywords that precede an expression: a parenthesis after one of these words belongs to that expression.
const BEFORE_EXPRESSIONS: &[&str] =
    &["not", "in", "if", "contains", "else", "with", "as", "some", "every", "default", "import", "package"];

#[derive(Default)]
struct Rewriter {
    /// The insertions: offsets in the source, and texts.
    edits: Vec<(usize, String)>,
    /// The number of open brackets.
    depth: usize,
    previous: Option<Previous>,
    rule: Option<RuleHead>,
}

/// The previous token.
struct Previous {
    end: usize,
    line: u32,
    /// The token is a name or ends an index: a parenthesis on the same line is a call.
    is_callable: bool,
    /// The token may end an expression.
    is_operand: bool,
    is_closing_brace: bool,
}

/// The head of the rule at the current token.
struct RuleHead {
    start: usize,
    /// The offset of the first body, if the body has begun.
    body: Option<usize>,
    has_key: bool,
    /// The head has a value or arguments. regorus supports a second body for such rules.
    has_value_or_arguments: bool,
}

/// Returns the source in the form that makes regorus read it like OPA; `None` if nothing has to be rewritten.
pub(super) fn rewrite(source: &Source) -> Result<Option<String>, CompileError> {
    let mut lexer = Lexer::new(source);
    lexer.set_max_col(MAX_COLUMN);
    let mut rewriter = Rewriter::default();
    loop {
        let token = lexer.next_token().map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
        if matches!(token.0, TokenKind::Eof) {
            break;
        }
        rewriter.visit(&token, source.contents())?;
    }
    if rewriter.edits.is_empty() {
        return Ok(None);
    }
    let mut text = source.contents().clone();
    for (offset, insertion) in rewriter.edits.iter().rev() {
        text.insert_str(*offset, insertion);
    }
    Ok(Some(text))
}

impl Rewriter {
    fn visit(&mut self, Token(kind, span): &Token, contents: &str) -> Result<(), CompileError> {
        let text = span.text();
        let is_name = matches!(kind, TokenKind::Ident);
        let symbol = if matches!(kind, TokenKind::Symbol | TokenKind::Ident) { text } else { "" };
        if symbol == "(" {
            self.separate_statement(span);
        }
        if self.depth == 0 {
            self.visit_head(span, symbol, is_name, contents)?;
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
            is_callable: (is_name && !keyword) || symbol == "]",
            is_operand: !keyword && (!matches!(kind, TokenKind::Symbol) || matches!(symbol, "}" | "]" | ")")),
            is_closing_brace: symbol == "}",
        });
        Ok(())
    }

    /// Ends the statement before a parenthesis that begins a line.
    fn separate_statement(&mut self, parenthesis: &Span) {
        if let Some(previous) =
            self.previous.as_ref().filter(|previous| previous.is_callable && previous.line != parenthesis.line)
        {
            self.edits.push((previous.end, ";".to_owned()));
        }
    }

    /// Handles a token outside of all brackets: it may belong to the head of a rule, or begin a second body.
    fn visit_head(&mut self, span: &Span, symbol: &str, is_name: bool, contents: &str) -> Result<(), CompileError> {
        let start = span.start as usize;
        let after = self.previous.as_ref();
        let begins_rule = after
            .is_none_or(|previous| previous.is_operand && (previous.is_closing_brace || previous.line != span.line));
        if is_name && begins_rule && symbol != "else" {
            self.rule = Some(RuleHead { start, body: None, has_key: false, has_value_or_arguments: false });
            return Ok(());
        }
        let Some(rule) = &mut self.rule else { return Ok(()) };
        match (symbol, rule.body) {
            ("[", None) => rule.has_key = true,
            ("(" | "=" | ":=" | "if" | "contains", None) => rule.has_value_or_arguments = true,
            ("{", None) if after.is_some_and(|previous| previous.is_operand) => rule.body = Some(start),
            ("{", Some(body))
                if rule.has_key
                    && !rule.has_value_or_arguments
                    && after.is_some_and(|previous| previous.is_closing_brace) =>
            {
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

    fn rewritten(text: &str) -> String {
        let source = Source::from_contents("policy.rego".into(), text.into()).unwrap();
        rewrite(&source).unwrap().unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn a_parenthesis_that_begins_a_line_is_a_statement() {
        assert_eq!(rewritten("p { x := input.a\n  (x == 1) }"), "p { x := input.a;\n  (x == 1) }");
        assert_eq!(rewritten("p { x := input.a[0]\n\n(x == 1) }"), "p { x := input.a[0];\n\n(x == 1) }");
        for same in ["p { x := f(1) }", "p { x :=\n(1 + 2) }", "p { not\n(x) }", "p { f(\n(1 + 2)) }", "p if\n(x == 1)"]
        {
            assert_eq!(rewritten(same), same);
        }
    }

    #[test]
    fn a_second_body_of_a_set_rule_is_another_rule() {
        assert_eq!(rewritten("p[x] { x := 1 } { x := 2 }"), "p[x] { x := 1 } p[x] { x := 2 }");
        assert_eq!(
            rewritten("a = {1}\nv[{\"msg\": m}] {\n  m := \"a\"\n} {\n  m := {\"b\"}\n}\nq[x] { x := 1 }"),
            "a = {1}\nv[{\"msg\": m}] {\n  m := \"a\"\n} v[{\"msg\": m}] {\n  m := {\"b\"}\n}\nq[x] { x := 1 }"
        );
        for same in ["p { a } { b }", "p[x] = y { y := 1; x := 2 } { y := 2; x := 3 }", "f(x) { x } { not x }"] {
            assert_eq!(rewritten(same), same);
        }
    }
}
