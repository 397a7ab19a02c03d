//! `not` as OPA has it. OPA evaluates the arguments of a negated call before the call: where one of them is undefined, so is
//! the statement. regorus takes the call for undefined, and its negation for true. So the arguments are written as statements
//! of their own before they are parsed again: `not f(input.x)` becomes `a := input.x; not f(a)`, on the same line.

mod operands;
mod tokens;

use std::collections::BTreeSet;

use regorus::unstable::{Expr, Literal, LiteralStmt, Module, Query, Ref, Rule, Span};

use super::builtins;
use super::syntax::{Part, at, modifier_parts, name_of, parts, path, rule_parts, statement_parts};
use crate::CompileError;
use tokens::Tokens;

/// What the new variables' names begin with.
const PREFIX: &str = "negated__";

/// A piece of the source that is replaced.
type Edit = (usize, usize, String);

struct Rewriting<'a> {
    source: &'a str,
    prefix: String,
    made: usize,
    /// Names that stand for something in `data`: the rules of the module's package, and what it imports.
    documents: BTreeSet<&'a str>,
    tokens: Tokens,
}

/// The module's source with its negations written out; none if there is nothing to write out. The rules of its package may
/// be in any of the modules.
pub(super) fn written_out(module: &Module, modules: &[Ref<Module>]) -> Result<Option<String>, CompileError> {
    let source = module.package.span.source.contents();
    let mut prefix = PREFIX.to_owned();
    while source.contains(&prefix) {
        prefix.push('_');
    }
    let package = path(&module.package.refr);
    let siblings = modules.iter().filter(|other| path(&other.package.refr) == package);
    let names = siblings.flat_map(|other| &other.policy).filter_map(|rule| path(name_of(rule)).first().copied());
    let imports = module.imports.iter().filter_map(|import| match &import.r#as {
        Some(alias) => Some(alias.text()),
        None => path(&import.refr).last().copied(),
    });
    let documents = names.chain(imports).chain(["input", "data"]).collect();
    let tokens = Tokens::of(&module.package.span.source)?;
    let mut rewriting = Rewriting { source, prefix, made: 0, documents, tokens };
    let mut edits = Vec::new();
    for rule in &module.policy {
        edits.extend(rewriting.rule(rule)?);
    }
    rewriting.whole(edits, &module.package.span)
}

/// The same for a query that stands alone.
pub(super) fn query_written_out(query: &Query) -> Result<Option<String>, CompileError> {
    let source = query.span.source.contents();
    let documents = ["input", "data"].into();
    let tokens = Tokens::of(&query.span.source)?;
    let mut rewriting = Rewriting { source, prefix: PREFIX.to_owned(), made: 0, documents, tokens };
    let edits = rewriting.query(query)?;
    rewriting.whole(edits, &query.span)
}

impl Rewriting<'_> {
    /// The whole source with the edits. Refuses it if a cut went through a string: what would be left might still be Rego,
    /// of another meaning.
    fn whole(&self, edits: Vec<Edit>, about: &Span) -> Result<Option<String>, CompileError> {
        if edits.is_empty() {
            return Ok(None);
        }
        let text = self.spliced(0, self.source.len(), edits);
        if self.tokens.are_kept_in(&text, &self.prefix)? {
            return Ok(Some(text));
        }
        let message =
            "its negations cannot be written out as OPA reads them: assign the arguments of negated calls before";
        Err(CompileError::Unsupported(at(about, message)))
    }

    fn range(&self, span: &Span) -> (usize, usize) {
        self.tokens.range(span)
    }

    /// Whether a function is one of the policy's own, whatever builtin has its name.
    fn is_own(&self, function: &Expr) -> bool {
        path(function).first().is_some_and(|name| self.documents.contains(name))
    }

    /// What is walked, if an expression is a `walk` without an output.
    fn walked<'e>(&self, expression: &'e Expr) -> Option<&'e Expr> {
        match expression {
            Expr::Call { fcn, params, .. } if path(fcn) == ["walk"] && params.len() == 1 && !self.is_own(fcn) => {
                params.first().map(AsRef::as_ref)
            }
            _ => None,
        }
    }

    /// regorus takes the list of all pairs for its value.
    fn check_walk(&self, expression: &Expr) -> Result<(), CompileError> {
        let message = "`walk` has many values: write walk(x, [path, value])";
        match self.walked(expression) {
            None => Ok(()),
            Some(_) => Err(CompileError::Unsupported(at(expression.span(), message))),
        }
    }

    /// The source from `start` to `end` with the edits inside of it.
    fn spliced(&self, start: usize, end: usize, mut edits: Vec<Edit>) -> String {
        edits.sort_unstable_by_key(|(start, ..)| *start);
        let mut text = String::new();
        let mut from = start;
        for (edit_start, edit_end, replacement) in edits {
            text += &self.source[from..edit_start];
            text += &replacement;
            from = edit_end;
        }
        text + &self.source[from..end]
    }

    fn rule(&mut self, rule: &Rule) -> Result<Vec<Edit>, CompileError> {
        let mut edits = self.all(rule_parts(rule))?;
        let Rule::Spec { bodies, .. } = rule else { return Ok(edits) };
        // `p if not q`: what becomes several statements needs braces.
        for query in bodies.iter().map(|body| &body.query) {
            let Some(only) = query.stmts.first().filter(|only| only.span.start == query.span.start) else { continue };
            let (start, end) = self.range(&only.span);
            if let Some((.., text)) = edits.iter_mut().find(|edit| edit.0 == start && edit.1 == end) {
                *text = format!("{{ {text} }}");
            }
        }
        Ok(edits)
    }

    fn all<'e>(&mut self, parts: impl IntoIterator<Item = Part<'e>>) -> Result<Vec<Edit>, CompileError> {
        let mut edits = Vec::new();
        for part in parts {
            match part {
                Part::Expression(expression) => edits.extend(self.expression(expression)?),
                Part::Query(query) => edits.extend(self.query(query)?),
            }
        }
        Ok(edits)
    }

    fn query(&mut self, query: &Query) -> Result<Vec<Edit>, CompileError> {
        let mut edits = Vec::new();
        for statement in &query.stmts {
            edits.extend(match &statement.literal {
                Literal::NotExpr { span, expr } => self.negated(statement, span, expr)?,
                Literal::Expr { expr, .. } => self.statement(statement, expr)?,
                _ => self.all(statement_parts(statement))?,
            });
        }
        Ok(edits)
    }

    /// Two spellings of a call with an output, of which regorus knows but one: `f(x, y)` for `y = f(x)` if the function is
    /// ours, and `walk(x, y)` alone, as it has many outputs.
    fn statement(&mut self, statement: &LiteralStmt, expression: &Expr) -> Result<Vec<Edit>, CompileError> {
        let (start, end) = self.range(expression.span());
        let mut edits = self.all(modifier_parts(statement))?;
        match expression {
            Expr::Call { fcn, params, .. } => {
                let name = path(fcn).join(".");
                if !self.is_own(fcn)
                    && let Some((output, arguments)) = params.split_last()
                    && builtins::addition(&name) == Some(arguments.len())
                {
                    let output = self.written(output)?;
                    let arguments: Result<Vec<_>, _> =
                        arguments.iter().map(|argument| self.written(argument)).collect();
                    edits.push((start, end, format!("{output} = {name}({})", arguments?.join(", "))));
                    return Ok(edits);
                }
            }
            Expr::AssignExpr { lhs, rhs, .. } => {
                if let Some(walked) = self.walked(rhs) {
                    let text = format!("walk({}, {})", self.written(walked)?, self.written(lhs)?);
                    edits.push((start, end, text));
                    return Ok(edits);
                }
            }
            _ => {}
        }
        edits.extend(self.expression(expression)?);
        Ok(edits)
    }

    fn written(&mut self, expression: &Expr) -> Result<String, CompileError> {
        let (start, end) = self.range(expression.span());
        let edits = self.expression(expression)?;
        Ok(self.spliced(start, end, edits))
    }

    /// What is to be written out inside of an expression: its comprehensions.
    fn expression(&mut self, expression: &Expr) -> Result<Vec<Edit>, CompileError> {
        self.check_walk(expression)?;
        self.all(parts(expression))
    }

    fn negated(&mut self, statement: &LiteralStmt, not: &Span, expression: &Expr) -> Result<Vec<Edit>, CompileError> {
        let mut before = Vec::new();
        let inner = self.top(expression, &mut before)?;
        let mut edits = self.all(modifier_parts(statement))?;
        if before.is_empty() {
            edits.extend(inner);
            return Ok(edits);
        }
        let (start, end) = self.range(&statement.span);
        let (not_start, not_end) = self.range(not);
        let with = self.spliced(not_end, end, edits);
        let negation = self.spliced(not_start, not_end, inner);
        let before: Vec<String> = before.iter().map(|assignment| format!("{assignment}{with}")).collect();
        Ok(vec![(start, end, format!("{}; {negation}{with}", before.join("; ")))])
    }
}

#[cfg(test)]
mod tests;
