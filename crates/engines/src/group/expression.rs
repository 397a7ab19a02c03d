//! The expression of a group. It has the syntax of CEL, but only members, constants and boolean operators are allowed.

use cel::common::ast::{Expr, LiteralValue, operators};
use cel::{Env, IdedExpr};

use crate::CompileError;
use crate::cel::{bounds, syntax};

/// A boolean expression over members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    Constant(bool),
    Member(String),
    Not(Box<Expression>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Equal(Box<Expression>, Box<Expression>),
}

impl Expression {
    pub(super) fn parse(source: &str, is_member: impl Fn(&str) -> bool) -> Result<Self, CompileError> {
        let within = |error| match error {
            CompileError::Invalid(message) => CompileError::Invalid(format!("the group's expression: {message}")),
            CompileError::Unsupported(message) => {
                CompileError::Unsupported(format!("the group's expression: {message}"))
            }
        };
        bounds::check(source).map_err(within)?;
        // The environment has no macros, so that a member may have the name `has`.
        let parsed = syntax::parse(&Env::default(), source).map_err(within)?;
        let expression = read(&parsed.tree, &parsed, &is_member).map_err(within)?;
        if !expression.has_member() {
            return Err(within(CompileError::Invalid("it contains no member: its value is constant".into())));
        }
        Ok(expression)
    }

    /// Returns true if the expression contains a member.
    fn has_member(&self) -> bool {
        match self {
            Self::Constant(_) => false,
            Self::Member(_) => true,
            Self::Not(inner) => inner.has_member(),
            Self::And(left, right) | Self::Or(left, right) | Self::Equal(left, right) => {
                left.has_member() || right.has_member()
            }
        }
    }
}

/// Converts a syntax tree. The recursion is bounded: the check of the text has limited the depth of the tree.
fn read(
    tree: &IdedExpr,
    parsed: &syntax::Parsed,
    is_member: &impl Fn(&str) -> bool,
) -> Result<Expression, CompileError> {
    let refuse = |message: &str| Err(CompileError::Invalid(parsed.at(tree, message)));
    let call = match &tree.expr {
        Expr::Literal(LiteralValue::Boolean(value)) => return Ok(Expression::Constant(*value.inner())),
        Expr::Ident(name) if is_member(name) => return refuse(&format!("{name} is a function: write {name}()")),
        Expr::Call(call) if call.target.is_none() => call,
        _ => return refuse("only members, &&, ||, !, ==, !=, true and false are allowed"),
    };
    let inner = |part: &IdedExpr| read(part, parsed, is_member).map(Box::new);
    Ok(match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::LOGICAL_NOT, [part]) => Expression::Not(inner(part)?),
        (operators::LOGICAL_AND, [left, right]) => Expression::And(inner(left)?, inner(right)?),
        (operators::LOGICAL_OR, [left, right]) => Expression::Or(inner(left)?, inner(right)?),
        (operators::EQUALS, [left, right]) => Expression::Equal(inner(left)?, inner(right)?),
        (operators::NOT_EQUALS, [left, right]) => {
            Expression::Not(Box::new(Expression::Equal(inner(left)?, inner(right)?)))
        }
        (name, []) if is_member(name) => Expression::Member(name.to_owned()),
        (name, _) if is_member(name) => return refuse(&format!("{name} takes no arguments")),
        (name, _) if crate::cel::functions::is_operator(name) => {
            return refuse("only members, &&, ||, !, ==, !=, true and false are allowed");
        }
        (name, _) => return refuse(&format!("the group has no member {name}")),
    })
}
