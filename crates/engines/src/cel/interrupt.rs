//! Ends loops at the deadline, or when they have gone round too often. cel cannot be cancelled, and how long a loop is lies
//! with whoever sends the review: the condition inside each loop becomes `@running() ? condition : false`, with a function
//! whose name cannot be written. After the deadline every loop runs out without doing anything.
//!
//! The shape of the loop stays: cel appends in place only where it recognises `map` and `filter`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators};
use cel::common::types::CelBool;
use cel::{Context, DeclarationError, IdedExpr};

use crate::{CompileError, Deadline, EvaluationError};

const RUNNING: &str = "@running";
/// How often the loops of an evaluation may go round, all together. Kubernetes ends one by its cost at about as much.
const MAX_ROUNDS: u64 = 2_000_000;

/// What is left of the time and the rounds of one evaluation.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    deadline: Deadline,
    rounds: Arc<AtomicU64>,
}

impl Budget {
    pub(super) fn new(deadline: Deadline) -> Self {
        Self { deadline, rounds: Arc::default() }
    }

    /// Declares what interrupted loops call.
    pub(super) fn declare(&self, context: &mut Context<'_, '_>) -> Result<(), DeclarationError> {
        let budget = self.clone();
        context.add_function(RUNNING, move || {
            budget.rounds.fetch_add(1, Ordering::Relaxed) < MAX_ROUNDS && !budget.deadline.is_over()
        })
    }

    /// Loops end early when it is used up: what came out then means nothing.
    pub(super) fn check(&self) -> Result<(), EvaluationError> {
        if self.deadline.is_over() {
            return Err(EvaluationError::DeadlineExceeded);
        }
        if self.rounds.load(Ordering::Relaxed) > MAX_ROUNDS {
            let why = format!("its loops went round more than {MAX_ROUNDS} times");
            return Err(EvaluationError::Failed(why));
        }
        Ok(())
    }
}

/// Makes a loop stop when the budget is used up. The step is `condition ? … : …`, or an operator on the accumulator and a
/// condition or a list of one item.
pub(super) fn interrupt(comprehension: &mut ComprehensionExpr) -> Result<(), CompileError> {
    if matches!(&comprehension.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(goes_on)) if !*goes_on.inner()) {
        // Names a value: it never goes round.
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
