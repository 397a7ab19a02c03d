//! Whether an expression is a condition over variables and functions that are there. cel finds out only
//! when it evaluates, and then maybe never: `true || nowhere` is true.

use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue};

use super::functions;
use super::syntax::{Parsed, parts};
use crate::CompileError;

/// The deepest tree. The bounds on the text allow less; this is what keeps the recursion here harmless.
const MAX_DEPTH: usize = 400;

const VARIABLES: &[&str] = &["object", "oldObject", "params", "request"];
/// What Kubernetes has besides.
const VARIABLES_TO_COME: &[&str] = &["authorizer", "namespaceObject", "variables"];
/// Names that stand for types.
const TYPES: &[&str] =
    &["bool", "bytes", "double", "int", "list", "map", "null_type", "optional_type", "string", "type", "uint"];
/// Operators whose value is no boolean.
const NO_CONDITIONS: &[&str] = &["_+_", "_-_", "_*_", "_/_", "_%_", "-_"];

/// Checks a whole expression.
pub(super) fn check(parsed: &Parsed) -> Result<(), CompileError> {
    let root = &parsed.tree;
    let condition = match &root.expr {
        Expr::Literal(literal) => matches!(literal, LiteralValue::Boolean(_)),
        Expr::Call(call) => !NO_CONDITIONS.contains(&call.func_name.as_str()),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => false,
        _ => true,
    };
    if !condition {
        return Err(CompileError::Invalid(parsed.at(root, "its value is not a bool")));
    }
    Check { parsed, scope: Vec::new() }.part(root, 0)
}

struct Check<'a> {
    parsed: &'a Parsed,
    /// The variables of the loops around.
    scope: Vec<&'a str>,
}

impl<'a> Check<'a> {
    fn part(&mut self, part: &'a IdedExpr, depth: usize) -> Result<(), CompileError> {
        if depth > MAX_DEPTH {
            return Err(CompileError::Unsupported(self.parsed.at(part, "it is nested too deep")));
        }
        match &part.expr {
            Expr::Ident(name) => return self.variable(part, name),
            Expr::Struct(value) => {
                let message = format!("objects of type {} cannot be made here", value.type_name);
                return Err(CompileError::Unsupported(self.parsed.at(part, &message)));
            }
            Expr::Unspecified => return Err(CompileError::Invalid(self.parsed.at(part, "it is empty"))),
            Expr::Call(call) => {
                let namespace = call.target.as_ref().and_then(|target| match &target.expr {
                    Expr::Ident(name) if !self.scope.contains(&name.as_str()) => Some(name.as_str()),
                    _ => None,
                });
                if let Some(namespace) = namespace.filter(|name| functions::NAMESPACES.contains(name)) {
                    self.function(part, &format!("{namespace}.{}", call.func_name))?;
                    return call.args.iter().try_for_each(|argument| self.part(argument, depth + 1));
                }
                self.function(part, &call.func_name)?;
            }
            Expr::Comprehension(comprehension) => {
                self.part(&comprehension.iter_range, depth + 1)?;
                self.part(&comprehension.accu_init, depth + 1)?;
                let outside = self.scope.len();
                self.scope.extend([comprehension.iter_var.as_str(), comprehension.accu_var.as_str()]);
                self.scope.extend(comprehension.iter_var2.as_deref());
                for inner in [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result] {
                    self.part(inner, depth + 1)?;
                }
                self.scope.truncate(outside);
            }
            Expr::List(_) | Expr::Literal(_) | Expr::Map(_) | Expr::Select(_) => {}
        }
        parts(&part.expr).into_iter().try_for_each(|inner| self.part(inner, depth + 1))
    }

    fn variable(&self, part: &IdedExpr, name: &str) -> Result<(), CompileError> {
        if self.scope.contains(&name) || VARIABLES.contains(&name) || TYPES.contains(&name) {
            return Ok(());
        }
        if VARIABLES_TO_COME.contains(&name) {
            let message = format!("the variable {name} is not available yet");
            return Err(CompileError::Unsupported(self.parsed.at(part, &message)));
        }
        let message = format!("there is no variable {name}, only {}", VARIABLES.join(", "));
        Err(CompileError::Invalid(self.parsed.at(part, &message)))
    }

    fn function(&self, part: &IdedExpr, name: &str) -> Result<(), CompileError> {
        if functions::exists(name) {
            return Ok(());
        }
        Err(CompileError::Unsupported(self.parsed.at(part, &format!("there is no function {name}"))))
    }
}
