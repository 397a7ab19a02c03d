//! What a negated expression consists of: which of it may be undefined, and is assigned before.

use regorus::unstable::{BoolOp, Expr};

use super::super::syntax::{Part, at, parts};
use super::{Edit, Rewriting};
use crate::CompileError;

impl Rewriting<'_> {
    /// The negated expression itself: what it compares for equality, and the reference that it is, may be undefined.
    pub(super) fn top(&mut self, expression: &Expr, before: &mut Vec<String>) -> Result<Vec<Edit>, CompileError> {
        match expression {
            Expr::AssignExpr { lhs, rhs, .. } | Expr::BoolExpr { op: BoolOp::Eq, lhs, rhs, .. } => {
                let mut edits = self.inside(lhs, before)?;
                edits.extend(self.inside(rhs, before)?);
                Ok(edits)
            }
            Expr::Call { params, .. } => self.all_hoisted(params.iter().map(AsRef::as_ref), false, before),
            Expr::BoolExpr { .. }
            | Expr::ArithExpr { .. }
            | Expr::BinExpr { .. }
            | Expr::UnaryExpr { .. }
            | Expr::Membership { .. } => self.all_hoisted(operands(expression), false, before),
            _ => self.inside(expression, before),
        }
    }

    fn inside(&mut self, expression: &Expr, before: &mut Vec<String>) -> Result<Vec<Edit>, CompileError> {
        match expression {
            Expr::RefDot { .. } | Expr::RefBrack { .. } => self.indexes(expression, false, before),
            Expr::Var { span, .. } if self.documents.contains(span.text()) => Ok(Vec::new()),
            _ => self.hoisted(expression, false, before),
        }
    }

    /// Each of these as [`Self::hoisted`].
    fn all_hoisted<'e>(
        &mut self,
        expressions: impl IntoIterator<Item = &'e Expr>,
        nested: bool,
        before: &mut Vec<String>,
    ) -> Result<Vec<Edit>, CompileError> {
        let mut edits = Vec::new();
        for expression in expressions {
            edits.extend(self.hoisted(expression, nested, before)?);
        }
        Ok(edits)
    }

    /// What is in the brackets of a reference, and the call that it may begin with.
    fn indexes(&mut self, reference: &Expr, nested: bool, before: &mut Vec<String>) -> Result<Vec<Edit>, CompileError> {
        match reference {
            Expr::RefDot { refr, .. } => self.indexes(refr, nested, before),
            Expr::RefBrack { refr, index, .. } => {
                let mut edits = self.indexes(refr, nested, before)?;
                edits.extend(self.hoisted(index, nested, before)?);
                Ok(edits)
            }
            Expr::Var { .. } => Ok(Vec::new()),
            other => self.hoisted(other, nested, before),
        }
    }

    /// What may be undefined becomes a variable that is assigned before. `nested` is for arguments of calls that are
    /// themselves assigned: for these alone OPA lets `_` stand for many values.
    fn hoisted(
        &mut self,
        expression: &Expr,
        nested: bool,
        before: &mut Vec<String>,
    ) -> Result<Vec<Edit>, CompileError> {
        let inner = match expression {
            Expr::Var { span, .. } if span.text() == "_" && !nested => {
                let message = "`_` in a negated expression stands for no value: assign what it looks through before, as in \
                               `x := list[_]; not f(x)`, or negate a rule or a comprehension";
                return Err(CompileError::Invalid(at(span, message)));
            }
            Expr::Var { span, .. } if !self.documents.contains(span.text()) => return Ok(Vec::new()),
            Expr::Var { .. } => Vec::new(),
            Expr::RefDot { .. } | Expr::RefBrack { .. } => self.indexes(expression, nested, before)?,
            Expr::Call { params, .. } => {
                self.check_walk(expression)?;
                self.all_hoisted(params.iter().map(AsRef::as_ref), true, before)?
            }
            Expr::UnaryExpr { expr, .. } if matches!(expr.as_ref(), Expr::Number { .. }) => return Ok(Vec::new()),
            Expr::BoolExpr { .. }
            | Expr::ArithExpr { .. }
            | Expr::BinExpr { .. }
            | Expr::UnaryExpr { .. }
            | Expr::Membership { .. } => self.all_hoisted(operands(expression), true, before)?,
            Expr::Array { .. } | Expr::Set { .. } | Expr::Object { .. } => {
                return self.all_hoisted(operands(expression), nested, before);
            }
            _ => return self.expression(expression),
        };
        let (start, end) = self.range(expression.span());
        let text = self.spliced(start, end, inner);
        self.made += 1;
        let name = format!("{}{}", self.prefix, self.made);
        before.push(match expression {
            Expr::BoolExpr { .. } | Expr::Membership { .. } => format!("{name} := ({text})"),
            _ => format!("{name} := {text}"),
        });
        Ok(vec![(start, end, name)])
    }
}

/// The expressions that one consists of.
fn operands(expression: &Expr) -> impl Iterator<Item = &Expr> {
    parts(expression).into_iter().filter_map(|part| match part {
        Part::Expression(operand) => Some(operand),
        Part::Query(_) => None,
    })
}
