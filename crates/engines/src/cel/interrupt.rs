//! Ends loops at the deadline. cel cannot be cancelled, and how long a loop is lies with whoever sends the
//! review: the condition inside each loop becomes `@running() ? condition : false`, with a function whose
//! name cannot be written. After the deadline every loop runs out without doing anything.
//!
//! The shape of the loop stays: cel appends in place only where it recognises `map` and `filter`.

use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};
use cel::common::types::CelBool;
use cel::{Context, DeclarationError, IdedExpr};

use super::syntax;
use crate::{CompileError, Deadline};

const RUNNING: &str = "@running";

/// Declares what interrupted loops call.
pub(super) fn declare(context: &mut Context<'_, '_>, deadline: Deadline) -> Result<(), DeclarationError> {
    context.add_function(RUNNING, move || !deadline.is_over())
}

/// Makes the loops of an expression, and of its parts, stop at the deadline.
pub(super) fn insert(tree: &mut IdedExpr) -> Result<(), CompileError> {
    // Recursive: the depth of trees is bounded.
    for part in syntax::parts_mut(&mut tree.expr) {
        insert(part)?;
    }
    match &mut tree.expr {
        Expr::Comprehension(comprehension) => interrupt_step(&mut comprehension.loop_step.expr),
        _ => Ok(()),
    }
}

/// The step is `condition ? … : …`, or an operator on the accumulator and a condition or a list of one item.
fn interrupt_step(step: &mut Expr) -> Result<(), CompileError> {
    let condition = match step {
        Expr::Call(CallExpr { func_name, args, .. }) if func_name == operators::CONDITIONAL => args.first_mut(),
        Expr::Call(CallExpr { args, .. }) => match args.last_mut() {
            Some(IdedExpr { expr: Expr::List(list), .. }) => list.elements.first_mut(),
            other => other,
        },
        _ => None,
    };
    let condition = condition.ok_or_else(|| CompileError::Unsupported("a macro whose loop cannot be ended".into()))?;
    *condition = wrap(std::mem::take(condition));
    Ok(())
}

fn wrap(condition: IdedExpr) -> IdedExpr {
    let id = condition.id;
    let running = Expr::Call(CallExpr { func_name: RUNNING.to_owned(), target: None, args: Vec::new() });
    let stopped = Expr::Literal(LiteralValue::Boolean(CelBool::from(false)));
    let args = vec![IdedExpr { id, expr: running }, condition, IdedExpr { id, expr: stopped }];
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name: operators::CONDITIONAL.to_owned(), target: None, args }) }
}
