//! Checks that need only the syntax of one import, statement or expression, not the rest of the policy.

use regorus::unstable::{Expr, LiteralStmt, Ref, Span};

use crate::CompileError;
use crate::rego::builtins::guards;
use crate::rego::syntax::{Part, at, parts, path, statement_parts};

/// Refuses imports of keywords that regorus does not support.
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

/// Returns true if a statement calls a function directly, not by way of a rule.
pub(super) fn calls_function(statement: &LiteralStmt, name: &[&str]) -> bool {
    let mut pending = statement_parts(statement);
    while let Some(part) = pending.pop() {
        match part {
            Part::Expression(expression) => {
                if matches!(expression, Expr::Call { fcn, .. } if path(fcn) == name) {
                    return true;
                }
                pending.extend(parts(expression));
            }
            Part::Query(query) => pending.extend(query.stmts.iter().flat_map(statement_parts)),
        }
    }
    false
}

pub(super) fn missing_function_message(name: &str) -> String {
    match name {
        "external_data" => {
            "external_data is not available: Proviso calls no providers of external data; use a wasm policy \
                            with hostCapabilities, or data.inventory"
                .to_owned()
        }
        "http.send" => "http.send is not available: a policy has no network".to_owned(),
        _ => format!("there is no function {name} in the policy, nor a builtin of this name yet"),
    }
}

/// Refuses a regular expression in the source that is not valid. Otherwise its call would deny every request.
pub(super) fn check_pattern(span: &Span, names: &[&str], parameters: &[Ref<Expr>]) -> Result<(), CompileError> {
    let pattern = guards::pattern_argument(&names.join(".")).and_then(|index| parameters.get(index));
    let Some(Expr::String { value, .. } | Expr::RawString { value, .. }) = pattern.map(AsRef::as_ref) else {
        return Ok(());
    };
    guards::pattern_is_valid(value).map_err(|why| CompileError::Invalid(at(span, &why)))
}

/// Refuses a minus before any operand but a literal number. regorus reads `-a + b` as `-(a + b)`.
pub(super) fn check_minus(span: &Span, operand: &Expr) -> Result<(), CompileError> {
    if matches!(operand, Expr::Number { .. }) {
        return Ok(());
    }
    Err(CompileError::Unsupported(at(span, "a minus is supported only before a number: write 0 - x")))
}

/// The message for `key, value in collection`. regorus finds no keys in a set, where each value is its own key.
pub(super) const KEY_IN_MESSAGE: &str = "a key beside a value before `in`: write collection[key] == value";
