//! Places of evaluations, as the policy server gives them.

use std::time::Instant;

use proviso_engines::{Budget, Deadline, EvaluationError, Shortage};
use proviso_shares::{Account, Limits, Rank, Shares};

/// The number of places of a policy.
const PLACES: u64 = 8;

/// The places of one policy.
#[derive(Clone)]
pub struct Places {
    places: Account,
    memory: Account,
}

impl Places {
    pub fn new() -> Self {
        let account = |total| Shares::new(Limits::of(4 * total)).account("a", None, Rank::Live);
        Self { places: account(PLACES), memory: account(1 << 30) }
    }

    /// Runs an evaluation at a place. Returns [`EvaluationError::Overloaded`] if no place is free by the deadline.
    pub async fn run<T>(
        &self,
        deadline: Deadline,
        evaluation: impl Future<Output = Result<T, EvaluationError>>,
    ) -> Result<T, EvaluationError> {
        let left = deadline.instant().saturating_duration_since(Instant::now());
        let place = self.places.take_within(1, left).await;
        let Some(place) = place.ok().filter(|_| !deadline.has_passed()) else {
            return Err(EvaluationError::Overloaded(Shortage::Cpu));
        };
        Budget { place, memory: self.memory.clone(), pacing: None }.run(evaluation).await
    }
}
