//! Hoists the operands of a negated expression: an operand that may be undefined is assigned to a variable in a statement
//! before the negation. The methods append these assignments to `assignments`.

use regorus::unstable::{BoolOp, Expr};

use super::super::syntax::{Part, at, parts};
use super::{Edit, Rewriter};
use crate::CompileError;

impl Rewriter<'_> {
    /// Hoists the operands of the negated expression itself. As in OPA, a reference, or an operand of an equality, may be
    /// undefined inside of the negation: only its indexes are hoisted.
    pub(super) fn negated_expression(
        &mut self,
        expression: &Expr,
        assignments: &mut Vec<String>,
    ) -> Result<Vec<Edit>, CompileError> {
        match expression {
            Expr::AssignExpr { lhs, rhs, .. } | Expr::BoolExpr { op: BoolOp::Eq, lhs, rhs, .. } => {
                let mut edits = self.hoist_inside(lhs, assignments)?;
                edits.extend(self.hoist_inside(rhs, assignments)?);
                Ok(edits)
            }
            Expr::Call { params, .. } => self.hoist_all(params.iter().map(AsRef::as_ref), false, assignments),
            Expr::BoolExpr { .. }
            | Expr::ArithExpr { .. }
            | Expr::BinExpr { .. }
            | Expr::UnaryExpr { .. }
            | Expr::Membership { .. } => self.hoist_all(operands(expression), false, assignments),
            _ => self.hoist_inside(expression, assignments),
        }
    }

    /// Hoists the indexes of a reference, or the whole expression if it is not a reference.
    fn hoist_inside(&mut self, expression: &Expr, assignments: &mut Vec<String>) -> Result<Vec<Edit>, CompileError> {
        match expression {
            Expr::RefDot { .. } | Expr::RefBrack { .. } => self.hoist_indexes(expression, false, assignments),
            Expr::Var { span, .. } if self.documents.contains(span.text()) => Ok(Vec::new()),
            _ => self.hoist(expression, false, assignments),
        }
    }

    /// Hoists each of the expressions.
    fn hoist_all<'e>(
        &mut self,
        expressions: impl IntoIterator<Item = &'e Expr>,
        nested: bool,
        assignments: &mut Vec<String>,
    ) -> Result<Vec<Edit>, CompileError> {
        let mut edits = Vec::new();
        for expression in expressions {
            edits.extend(self.hoist(expression, nested, assignments)?);
        }
        Ok(edits)
    }

    /// Hoists the indexes in the brackets of a reference, and the call that the reference may begin with.
    fn hoist_indexes(
        &mut self,
        reference: &Expr,
        nested: bool,
        assignments: &mut Vec<String>,
    ) -> Result<Vec<Edit>, CompileError> {
        match reference {
            Expr::RefDot { refr, .. } => self.hoist_indexes(refr, nested, assignments),
            Expr::RefBrack { refr, index, .. } => {
                let mut edits = self.hoist_indexes(refr, nested, assignments)?;
                edits.extend(self.hoist(index, nested, assignments)?);
                Ok(edits)
            }
            Expr::Var { .. } => Ok(Vec::new()),
            other => self.hoist(other, nested, assignments),
        }
    }

    /// Replaces an expression that may be undefined by a variable, and appends the assignment. `nested` is true for the arguments
    /// of a call that is hoisted itself. OPA allows `_`, which stands for many values, only in such arguments.
    fn hoist(
        &mut self,
        expression: &Expr,
        nested: bool,
        assignments: &mut Vec<String>,
    ) -> Result<Vec<Edit>, CompileError> {
        let inner = match expression {
            Expr::Var { span, .. } if span.text() == "_" && !nested => {
                let message = "`_` in a negated expression is unsafe: assign the element to a variable first, as in \
                               `x := list[_]; not f(x)`, or negate a rule or a comprehension";
                return Err(CompileError::Invalid(at(span, message)));
            }
            Expr::Var { span, .. } if !self.documents.contains(span.text()) => return Ok(Vec::new()),
            Expr::Var { .. } => Vec::new(),
            Expr::RefDot { .. } | Expr::RefBrack { .. } => self.hoist_indexes(expression, nested, assignments)?,
            Expr::Call { params, .. } => {
                self.check_walk(expression)?;
                self.hoist_all(params.iter().map(AsRef::as_ref), true, assignments)?
            }
            Expr::UnaryExpr { expr, .. } if matches!(expr.as_ref(), Expr::Number { .. }) => return Ok(Vec::new()),
            Expr::BoolExpr { .. }
            | Expr::ArithExpr { .. }
            | Expr::BinExpr { .. }
            | Expr::UnaryExpr { .. }
            | Expr::Membership { .. } => self.hoist_all(operands(expression), true, assignments)?,
            Expr::Array { .. } | Expr::Set { .. } | Expr::Object { .. } => {
                return self.hoist_all(operands(expression), nested, assignments);
            }
            _ => return self.expression(expression),
        };
        let (start, end) = self.range(expression.span());
        let text = self.splice(start, end, inner);
        self.variables += 1;
        let name = format!("{}{}", self.prefix, self.variables);
        assignments.push(match expression {
            Expr::BoolExpr { .. } | Expr::Membership { .. } => format!("{name} := ({text})"),
            _ => format!("{name} := {text}"),
        });
        Ok(vec![(start, end, name)])
    }
}

/// Returns the operands of an expression.
fn operands(expression: &Expr) -> impl Iterator<Item = &Expr> {
    parts(expression).into_iter().filter_map(|part| match part {
        Part::Expression(operand) => Some(operand),
        Part::Query(_) => None,
    })
}
