//! Checks that the variables and functions of an expression exist, and that a condition may be boolean. cel checks names only
//! during the evaluation, and there not always: `true || nowhere` is true.

use std::collections::BTreeMap;

use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue};

use super::syntax::{Parsed, parts};
use super::{construct, functions};
use crate::CompileError;

/// The largest depth of a syntax tree, including the trees of the variables that it reads. The limits on the text bound the depth
/// of each single expression. This limit also bounds chains of variables, and the recursion in this module.
const MAX_DEPTH: usize = 400;

const VARIABLES: &[&str] = &["authorizer", "namespaceObject", "object", "oldObject", "params", "request"];
/// The variables of a template.
const TEMPLATE_VARIABLES: &[&str] = &["component", "params"];
/// The names of types.
const TYPES: &[&str] =
    &["bool", "bytes", "double", "int", "list", "map", "null_type", "optional_type", "string", "type", "uint"];
/// The operators whose value is never a boolean.
const NON_BOOLEAN_OPERATORS: &[&str] = &["_+_", "_-_", "_*_", "_/_", "_%_", "-_"];

/// The use of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Condition,
    Value,
    /// The expression may construct objects and patches.
    Mutation,
    /// The expression is a template, which reads the variables of templates only.
    Template,
}

/// The requirements of an expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Requirements {
    /// The depth of the syntax tree, including the variables that it reads.
    pub depth: usize,
    /// True if the expression reads `namespaceObject`.
    pub namespace: bool,
    /// True if the expression reads `authorizer`.
    pub authorizer: bool,
}

/// The variables that are defined before an expression, with their requirements.
pub(super) type KnownVariables = BTreeMap<String, Requirements>;

/// Checks an expression. Returns its requirements.
pub(super) fn check(parsed: &Parsed, purpose: Purpose, known: &KnownVariables) -> Result<Requirements, CompileError> {
    let root = &parsed.tree;
    let condition = match &root.expr {
        Expr::Literal(literal) => matches!(literal, LiteralValue::Boolean(_)),
        Expr::Call(call) => !NON_BOOLEAN_OPERATORS.contains(&call.func_name.as_str()),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => false,
        _ => true,
    };
    if purpose == Purpose::Condition && !condition {
        return Err(CompileError::Invalid(parsed.at(root, "its value is not a bool")));
    }
    let mut check = Check { parsed, purpose, known, scope: Vec::new(), needs: Requirements::default() };
    check.part(root, 0)?;
    Ok(check.needs)
}

struct Check<'a> {
    parsed: &'a Parsed,
    purpose: Purpose,
    known: &'a KnownVariables,
    /// The variables of the enclosing loops.
    scope: Vec<&'a str>,
    needs: Requirements,
}

impl<'a> Check<'a> {
    fn part(&mut self, part: &'a IdedExpr, depth: usize) -> Result<(), CompileError> {
        self.record_depth(part, depth)?;
        match &part.expr {
            Expr::Ident(name) => return self.variable(part, name),
            Expr::Select(select) if self.is_free(&select.operand, "variables") => {
                return self.composed(part, &select.field, select.test, depth);
            }
            Expr::Struct(value) if self.purpose == Purpose::Mutation => {
                construct::check(value).map_err(|why| CompileError::Invalid(self.parsed.at(part, &why)))?;
            }
            Expr::Struct(value) => {
                let message = format!("objects of type {} can be constructed in mutations only", value.type_name);
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

    fn record_depth(&mut self, part: &IdedExpr, depth: usize) -> Result<(), CompileError> {
        if depth > MAX_DEPTH {
            return Err(CompileError::Unsupported(self.parsed.at(part, "it is nested too deep")));
        }
        self.needs.depth = self.needs.depth.max(depth);
        Ok(())
    }

    /// Returns true if a part is the global variable `name`. A loop variable of the same name hides it.
    fn is_free(&self, part: &IdedExpr, name: &str) -> bool {
        matches!(&part.expr, Expr::Ident(found) if found == name) && !self.scope.contains(&name)
    }

    /// Checks `variables.name`. `test` is true for `has(variables.name)`.
    fn composed(&mut self, part: &IdedExpr, name: &str, test: bool, depth: usize) -> Result<(), CompileError> {
        let Some(needs) = self.known.get(name).copied() else {
            let known: Vec<_> = self.known.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none is defined before".to_owned() } else { known.join(", ") };
            let message = format!("there is no variable variables.{name} here ({known})");
            return Err(CompileError::Invalid(self.parsed.at(part, &message)));
        };
        if test {
            let message = format!("has(variables.{name}): it is always there, write variables.{name}");
            return Err(CompileError::Unsupported(self.parsed.at(part, &message)));
        }
        self.needs.namespace |= needs.namespace;
        self.needs.authorizer |= needs.authorizer;
        // The variable is evaluated during the evaluation of this part, on the same stack.
        self.record_depth(part, depth + 1 + needs.depth)
    }

    fn variable(&mut self, part: &IdedExpr, name: &str) -> Result<(), CompileError> {
        if self.scope.contains(&name) || TYPES.contains(&name) {
            return Ok(());
        }
        if self.purpose == Purpose::Template {
            if TEMPLATE_VARIABLES.contains(&name) {
                return Ok(());
            }
            let message = format!("there is no variable {name}, only {}", TEMPLATE_VARIABLES.join(" and "));
            return Err(CompileError::Invalid(self.parsed.at(part, &message)));
        }
        if VARIABLES.contains(&name) {
            self.needs.namespace |= name == "namespaceObject";
            self.needs.authorizer |= name == "authorizer";
            return Ok(());
        }
        let message = if name == "variables" {
            "read variables one by one, as variables.name".to_owned()
        } else {
            format!("there is no variable {name}, only {} and variables", VARIABLES.join(", "))
        };
        Err(CompileError::Invalid(self.parsed.at(part, &message)))
    }

    fn function(&self, part: &IdedExpr, name: &str) -> Result<(), CompileError> {
        if functions::exists(name) {
            return Ok(());
        }
        Err(CompileError::Unsupported(self.parsed.at(part, &format!("there is no function {name}"))))
    }
}
