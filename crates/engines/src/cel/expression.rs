//! One compiled expression.

use cel::IdedExpr;

use super::check::{self, KnownVariables, Purpose, Requirements};
use super::environment::ENVIRONMENT;
use super::{bounds, rewrite, syntax};
use crate::CompileError;
use crate::template::MAX_TEMPLATE;

pub(super) struct Expression {
    /// The source on one line, for messages.
    pub text: String,
    pub tree: IdedExpr,
    pub needs: Requirements,
}

impl Expression {
    /// Compiles an expression. Errors name it. `known` are the variables that are defined before it.
    pub(super) fn compile(source: &str, purpose: Purpose, known: &KnownVariables) -> Result<Self, CompileError> {
        let text = source.split_whitespace().collect::<Vec<_>>().join(" ");
        let compiled = compile(source, purpose, known);
        let (tree, needs) = compiled.map_err(|error| with_context(&format!("expression {text:?}"), error))?;
        Ok(Self { text, tree, needs })
    }
}

/// Compiles an expression. Errors have no name.
pub(super) fn compile(
    source: &str,
    purpose: Purpose,
    known: &KnownVariables,
) -> Result<(IdedExpr, Requirements), CompileError> {
    let max = if purpose == Purpose::Template { MAX_TEMPLATE } else { bounds::MAX_SOURCE };
    bounds::check_within(max, source)?;
    let parsed = syntax::parse(&ENVIRONMENT, source)?;
    let needs = check::check(&parsed, purpose, known)?;
    let mut tree = parsed.tree;
    rewrite::rewrite(&mut tree)?;
    Ok((tree, needs))
}

/// Returns an error with the name of its subject before the message.
pub(super) fn with_context(subject: &str, error: CompileError) -> CompileError {
    match error {
        CompileError::Invalid(message) => CompileError::Invalid(format!("{subject}: {message}")),
        CompileError::Unsupported(message) => CompileError::Unsupported(format!("{subject}: {message}")),
    }
}
