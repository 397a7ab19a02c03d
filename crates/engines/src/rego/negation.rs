//! Rewrites negations so that regorus evaluates them like OPA. OPA evaluates the arguments of a negated call before the call:
//! if an argument is undefined, the statement is undefined. In regorus the call is undefined, and its negation true. The
//! rewriter turns the arguments into statements of their own: `not f(input.x)` becomes `a := input.x; not f(a)`, on the same
//! line.

mod operands;
mod tokens;

use std::collections::BTreeSet;

use regorus::unstable::{Expr, Literal, LiteralStmt, Module, Query, Ref, Rule, Span};

use super::builtins;
use super::syntax::{Part, at, modifier_parts, name_of, parts, path, rule_parts, statement_parts};
use crate::CompileError;
use tokens::Tokens;

/// The prefix of the names of the new variables.
const PREFIX: &str = "negated__";

/// A replacement in the source: the start and the end of the replaced text, and the new text.
type Edit = (usize, usize, String);

struct Rewriter<'a> {
    source: &'a str,
    prefix: String,
    /// The number of new variables.
    variables: usize,
    /// The names of documents: the rules of the module's package, its imports, `input` and `data`.
    documents: BTreeSet<&'a str>,
    tokens: Tokens,
}

/// Returns the source of a module with its negations rewritten; `None` if nothing has to be rewritten. `modules` are all modules
/// of the policy: any of them may define rules of the package.
pub(super) fn rewrite(module: &Module, modules: &[Ref<Module>]) -> Result<Option<String>, CompileError> {
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
    let mut rewriter = Rewriter { source, prefix, variables: 0, documents, tokens };
    let mut edits = Vec::new();
    for rule in &module.policy {
        edits.extend(rewriter.rule(rule)?);
    }
    rewriter.apply(edits, &module.package.span)
}

/// Returns a query without a module with its negations rewritten; `None` if nothing has to be rewritten.
pub(super) fn rewrite_query(query: &Query) -> Result<Option<String>, CompileError> {
    let source = query.span.source.contents();
    let documents = ["input", "data"].into();
    let tokens = Tokens::of(&query.span.source)?;
    let mut rewriter = Rewriter { source, prefix: PREFIX.to_owned(), variables: 0, documents, tokens };
    let edits = rewriter.query(query)?;
    rewriter.apply(edits, &query.span)
}

impl Rewriter<'_> {
    /// Applies the edits to the source. Refuses the result if an edit has cut a string: the result might still be valid Rego,
    /// but with another meaning. `about` is the span of the error.
    fn apply(&self, edits: Vec<Edit>, about: &Span) -> Result<Option<String>, CompileError> {
        if edits.is_empty() {
            return Ok(None);
        }
        let text = self.splice(0, self.source.len(), edits);
        if self.tokens.are_preserved_in(&text, &self.prefix)? {
            return Ok(Some(text));
        }
        let message =
            "its negations cannot be evaluated like in OPA: assign the arguments of negated calls to variables first";
        Err(CompileError::Unsupported(at(about, message)))
    }

    fn range(&self, span: &Span) -> (usize, usize) {
        self.tokens.range(span)
    }

    /// Returns true if the policy defines the function. It may hide a builtin of the same name.
    fn is_own(&self, function: &Expr) -> bool {
        path(function).first().is_some_and(|name| self.documents.contains(name))
    }

    /// Returns the operand of `walk` if the expression is a `walk` without an output.
    fn walk_operand<'e>(&self, expression: &'e Expr) -> Option<&'e Expr> {
        match expression {
            Expr::Call { fcn, params, .. } if path(fcn) == ["walk"] && params.len() == 1 && !self.is_own(fcn) => {
                params.first().map(AsRef::as_ref)
            }
            _ => None,
        }
    }

    /// Refuses `walk` as a value. regorus would return the list of all pairs.
    fn check_walk(&self, expression: &Expr) -> Result<(), CompileError> {
        let message = "`walk` has many values: write walk(x, [path, value])";
        match self.walk_operand(expression) {
            None => Ok(()),
            Some(_) => Err(CompileError::Unsupported(at(expression.span(), message))),
        }
    }

    /// Returns the source from `start` to `end`, with the edits between these positions.
    fn splice(&self, start: usize, end: usize, mut edits: Vec<Edit>) -> String {
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
        // The body of `p if not q` needs braces after it becomes several statements.
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

    /// Rewrites a statement. Of the two forms of a call with an output, `f(x, y)` and `y = f(x)`, regorus supports only the
    /// second for the builtins that Proviso adds, and only the first for `walk`, which has many outputs.
    fn statement(&mut self, statement: &LiteralStmt, expression: &Expr) -> Result<Vec<Edit>, CompileError> {
        let (start, end) = self.range(expression.span());
        let mut edits = self.all(modifier_parts(statement))?;
        match expression {
            Expr::Call { fcn, params, .. } => {
                let name = path(fcn).join(".");
                if !self.is_own(fcn)
                    && let Some((output, arguments)) = params.split_last()
                    && builtins::arity_of_added(&name) == Some(arguments.len())
                {
                    let output = self.rewritten(output)?;
                    let arguments: Result<Vec<_>, _> =
                        arguments.iter().map(|argument| self.rewritten(argument)).collect();
                    edits.push((start, end, format!("{output} = {name}({})", arguments?.join(", "))));
                    return Ok(edits);
                }
            }
            Expr::AssignExpr { lhs, rhs, .. } => {
                if let Some(operand) = self.walk_operand(rhs) {
                    let text = format!("walk({}, {})", self.rewritten(operand)?, self.rewritten(lhs)?);
                    edits.push((start, end, text));
                    return Ok(edits);
                }
            }
            _ => {}
        }
        edits.extend(self.expression(expression)?);
        Ok(edits)
    }

    fn rewritten(&mut self, expression: &Expr) -> Result<String, CompileError> {
        let (start, end) = self.range(expression.span());
        let edits = self.expression(expression)?;
        Ok(self.splice(start, end, edits))
    }

    /// Rewrites the negations in the comprehensions of an expression.
    fn expression(&mut self, expression: &Expr) -> Result<Vec<Edit>, CompileError> {
        self.check_walk(expression)?;
        self.all(parts(expression))
    }

    fn negated(&mut self, statement: &LiteralStmt, not: &Span, expression: &Expr) -> Result<Vec<Edit>, CompileError> {
        let mut assignments = Vec::new();
        let inner = self.negated_expression(expression, &mut assignments)?;
        let mut edits = self.all(modifier_parts(statement))?;
        if assignments.is_empty() {
            edits.extend(inner);
            return Ok(edits);
        }
        let (start, end) = self.range(&statement.span);
        let (not_start, not_end) = self.range(not);
        let with = self.splice(not_end, end, edits);
        let negation = self.splice(not_start, not_end, inner);
        let assignments: Vec<String> = assignments.iter().map(|assignment| format!("{assignment}{with}")).collect();
        Ok(vec![(start, end, format!("{}; {negation}{with}", assignments.join("; ")))])
    }
}

#[cfg(test)]
mod tests;
