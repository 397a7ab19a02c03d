//! The parts of shared budgets that one evaluation uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// The pacing of the policy's evaluations. `None` lets each evaluation run all the time, at the priority of its caller.
    pub pacing: Option<Pacing>,
}

/// The CPU priority of the evaluations of one policy: a long evaluation continues at the lowest one, and the evaluation after a long one
/// begins with it. Clones share all state.
#[derive(Clone, Debug)]
pub struct Pacing {
    #[cfg_attr(not(feature = "wasm"), expect(dead_code, reason = "only wasm evaluations take turns"))]
    turns: Account,
    /// True if the last evaluation was long, or took all the memory of the policy's share.
    is_slow: Arc<AtomicBool>,
}

impl Pacing {
    /// Makes the pacing of a policy. Its long wasm evaluations take their turns from this account.
    #[must_use]
    pub fn new(turns: Account) -> Self {
        Self { turns, is_slow: Arc::default() }
    }

    #[cfg(feature = "wasm")]
    pub(crate) fn turns(&self) -> &Account {
        &self.turns
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }
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
