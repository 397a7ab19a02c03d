//! Ends loops at the deadline, after too many iterations, or when the evaluation takes too much memory. cel has no cancellation, and the object of the request determines
//! the number of iterations. The condition inside each loop becomes `@running() ? condition : false`. No expression can contain
//! the name of this function. After the deadline, the remaining iterations do nothing.
//!
//! The rewriting keeps the shape of the loop: cel appends to lists in place only if it recognises `map` and `filter`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators};
use cel::common::types::CelBool;
use cel::{Context, DeclarationError, IdedExpr};

use crate::{CompileError, Deadline, EvaluationError};

const RUNNING: &str = "@running";
/// The largest number of iterations of all loops of an evaluation. The cost limit of Kubernetes ends an evaluation at a similar
/// number.
const MAX_ITERATIONS: u64 = 2_000_000;

/// The limits of one evaluation: its deadline, and the number of its iterations.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    deadline: Deadline,
    iterations: Arc<AtomicU64>,
}

impl Budget {
    pub(super) fn new(deadline: Deadline) -> Self {
        Self { deadline, iterations: Arc::default() }
    }

    /// Declares the function that each iteration calls.
    pub(super) fn declare(&self, context: &mut Context<'_, '_>) -> Result<(), DeclarationError> {
        let budget = self.clone();
        context.add_function(RUNNING, move || {
            budget.iterations.fetch_add(1, Ordering::Relaxed) < MAX_ITERATIONS
                && !budget.deadline.has_passed()
                && proviso_memory::check().is_ok()
        })
    }

    /// Returns an error if the time or the iterations are exhausted. The memory is checked at the end of the evaluation. Then loops have ended early, and the value of the expression is meaningless.
    pub(super) fn check(&self) -> Result<(), EvaluationError> {
        if self.deadline.has_passed() {
            return Err(EvaluationError::DeadlineExceeded);
        }
        if self.iterations.load(Ordering::Relaxed) > MAX_ITERATIONS {
            let why = format!("its loops have more than {MAX_ITERATIONS} iterations");
            return Err(EvaluationError::Failed(why));
        }
        Ok(())
    }
}

/// Rewrites a loop so that it stops when the budget is exhausted. The step of a loop has one of three forms:
/// `condition ? … : …`, `accumulator <operator> condition`, or `accumulator <operator> [item]`.
pub(super) fn interrupt(comprehension: &mut ComprehensionExpr) -> Result<(), CompileError> {
    if matches!(&comprehension.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(goes_on)) if !*goes_on.inner()) {
        // This comprehension only binds a value to a name. It has no iteration.
        return Ok(());
    }
    let condition = match &mut comprehension.loop_step.expr {
        Expr::Call(CallExpr { func_name, args, .. }) if func_name == operators::CONDITIONAL => args.first_mut(),
        Expr::Call(CallExpr { args, .. }) => match args.last_mut() {
            Some(IdedExpr { expr: Expr::List(list), .. }) => list.elements.first_mut(),
            other => other,
        },
        _ => None,
    };
    let condition =
        condition.ok_or_else(|| CompileError::Unsupported("it has a macro whose loop cannot be interrupted".into()))?;
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
