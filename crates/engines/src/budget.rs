//! The parts of shared budgets that one evaluation uses.

use std::sync::Arc;

use proviso_shares::{Account, Permit};

tokio::task_local! {
    /// The budget of the evaluation that this task runs.
    static CURRENT: Arc<Budget>;
}

/// The parts of shared budgets that one evaluation uses.
#[derive(Debug)]
pub struct Budget {
    /// The place of the evaluation. It is returned when the evaluation has really ended: a blocking thread cannot be interrupted,
    /// and keeps the place if it runs past the deadline, or if the caller does not wait any more.
    pub place: Permit,
    /// The memory of the policy's wasm instances, in bytes. One evaluation takes at most the share of a policy.
    pub memory: Account,
    /// The turns of wasm evaluations that run for long. Such an evaluation, and one of an interpreter, continues at the lowest CPU
    /// priority. `None` lets each evaluation run all the time, at the priority of its caller.
    pub turns: Option<Account>,
}

impl Budget {
    /// Runs an evaluation within this budget.
    pub async fn run<T>(self, evaluation: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::new(self), evaluation).await
    }

    /// Returns the budget of the evaluation that this task runs; `None` if the evaluation has no budget.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }
}
