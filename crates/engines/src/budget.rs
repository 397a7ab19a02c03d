//! The parts of shared budgets that one evaluation uses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use proviso_shares::{Account, Permit};

/// The time for which the evaluations of a policy begin at the lowest CPU priority after a long one.
const SLOW: Duration = Duration::from_secs(1);

/// The time from which [`Pacing::slow_until`] counts.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

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

/// The CPU priority of the evaluations of one policy: a long evaluation continues at the lowest one, and for a second after it, the
/// evaluations of the policy begin with it. Clones share all state.
#[derive(Clone, Debug)]
pub struct Pacing {
    #[cfg_attr(not(feature = "wasm"), expect(dead_code, reason = "only wasm evaluations take turns"))]
    turns: Account,
    /// The time until which evaluations begin at the lowest priority, in microseconds since [`START`]. A short evaluation does not change
    /// it: otherwise a policy could run a short one before each long one.
    slow_until: Arc<AtomicU64>,
}

impl Pacing {
    /// Makes the pacing of a policy. Its long wasm evaluations take their turns from this account.
    #[must_use]
    pub fn new(turns: Account) -> Self {
        LazyLock::force(&START);
        Self { turns, slow_until: Arc::default() }
    }

    #[cfg(feature = "wasm")]
    pub(crate) fn turns(&self) -> &Account {
        &self.turns
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow_at(Instant::now())
    }

    fn is_slow_at(&self, now: Instant) -> bool {
        micros(now) < self.slow_until.load(Ordering::Relaxed)
    }

    /// Records that an evaluation was long, or found all the memory of the policy's share in use.
    pub(crate) fn record_slow(&self) {
        self.slow_until.fetch_max(micros(Instant::now() + SLOW), Ordering::Relaxed);
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

    /// Runs a part of an evaluation, which may move to another task, within the budget of the evaluation.
    #[cfg(feature = "wasm")]
    pub(crate) async fn run_part<T>(budget: Option<Arc<Self>>, part: impl Future<Output = T>) -> T {
        match budget {
            Some(budget) => CURRENT.scope(budget, part).await,
            None => part.await,
        }
    }
}

/// Returns a time in microseconds since [`START`].
fn micros(time: Instant) -> u64 {
    u64::try_from(time.saturating_duration_since(*START).as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proviso_shares::{Limits, Rank, Shares};

    use super::*;

    #[test]
    fn a_policy_is_slow_for_a_second_after_a_long_evaluation() {
        let pacing = Pacing::new(Shares::new(Limits::of(1)).account("a", None, Rank::Live));
        let before = Instant::now();
        assert!(!pacing.is_slow_at(before));
        pacing.record_slow();
        let after = Instant::now();
        assert!(pacing.clone().is_slow_at(before + SLOW / 2) && !pacing.is_slow_at(after + SLOW));
    }
}
