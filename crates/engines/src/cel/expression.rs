//! One expression, made ready.

use cel::IdedExpr;

use super::check::{self, Known, Needs, Purpose};
use super::environment::ENVIRONMENT;
use super::{bounds, rewrite, syntax};
use crate::CompileError;

pub(super) struct Expression {
    /// As it was written, on one line.
    pub text: String,
    pub tree: IdedExpr,
    pub needs: Needs,
}

impl Expression {
    /// Errors name the expression.
    pub(super) fn compile(source: &str, purpose: Purpose, known: &Known) -> Result<Self, CompileError> {
        let text = source.split_whitespace().collect::<Vec<_>>().join(" ");
        let compiled = compile(source, purpose, known);
        let (tree, needs) = compiled.map_err(|error| within(&format!("expression {text:?}"), error))?;
        Ok(Self { text, tree, needs })
    }
}

fn compile(source: &str, purpose: Purpose, known: &Known) -> Result<(IdedExpr, Needs), CompileError> {
    bounds::check(source)?;
    let parsed = syntax::parse(&ENVIRONMENT, source)?;
    let needs = check::check(&parsed, purpose, known)?;
    let mut tree = parsed.tree;
    rewrite::rewrite(&mut tree)?;
    Ok((tree, needs))
}

/// An error with what it is about.
pub(super) fn within(what: &str, error: CompileError) -> CompileError {
    match error {
        CompileError::Invalid(message) => CompileError::Invalid(format!("{what}: {message}")),
        CompileError::Unsupported(message) => CompileError::Unsupported(format!("{what}: {message}")),
    }
}
