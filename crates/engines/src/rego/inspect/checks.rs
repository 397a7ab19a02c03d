//! What is refused for how it is written, whatever the rest of the policy is.

use regorus::unstable::{Expr, LiteralStmt, Ref, Span};

use crate::CompileError;
use crate::rego::builtins::guards;
use crate::rego::syntax::{Part, at, parts, path, statement_parts};

/// Refuses imports that change what is written in ways that regorus does not know.
pub(super) fn check_keywords(span: &Span, import: &[&str]) -> Result<(), CompileError> {
    let is_known = match import {
        ["future", "keywords"] | ["rego", "v1"] => true,
        ["future", "keywords", keyword] => ["contains", "every", "if", "in"].contains(keyword),
        ["future" | "rego", ..] => false,
        _ => true,
    };
    let message = || format!("{} is not supported: write the policy for Rego v1", import.join("."));
    if is_known { Ok(()) } else { Err(CompileError::Unsupported(at(span, &message()))) }
}

/// Whether a statement itself calls a function.
pub(super) fn calls(statement: &LiteralStmt, name: &[&str]) -> bool {
    let mut open = statement_parts(statement);
    while let Some(part) = open.pop() {
        match part {
            Part::Expression(expression) => {
                if matches!(expression, Expr::Call { fcn, .. } if path(fcn) == name) {
                    return true;
                }
                open.extend(parts(expression));
            }
            Part::Query(query) => open.extend(query.stmts.iter().flat_map(statement_parts)),
        }
    }
    false
}

pub(super) fn missing(name: &str) -> String {
    match name {
        "external_data" => {
            "external_data is not available: Proviso asks no providers of external data; use a wasm policy \
                            with hostCapabilities, or data.inventory"
                .to_owned()
        }
        "http.send" => "http.send is not available: a policy has no network".to_owned(),
        _ => format!("there is no function {name} in the policy, nor a builtin of this name yet"),
    }
}

/// A regular expression that is written out is checked before it can deny every request.
pub(super) fn check_pattern(span: &Span, names: &[&str], parameters: &[Ref<Expr>]) -> Result<(), CompileError> {
    let pattern = guards::pattern_of(&names.join(".")).and_then(|place| parameters.get(place));
    let Some(Expr::String { value, .. } | Expr::RawString { value, .. }) = pattern.map(AsRef::as_ref) else {
        return Ok(());
    };
    guards::pattern_is_valid(value).map_err(|why| CompileError::Invalid(at(span, &why)))
}

/// regorus negates numbers that are written out only, and takes `-a + b` for `-(a + b)`.
pub(super) fn check_minus(span: &Span, operand: &Expr) -> Result<(), CompileError> {
    if matches!(operand, Expr::Number { .. }) {
        return Ok(());
    }
    Err(CompileError::Unsupported(at(span, "a minus before what is no number: write 0 - x")))
}

/// regorus finds no keys in a set, where each value is its own.
pub(super) const KEY_IN: &str = "a key beside a value before `in`: write collection[key] == value";
