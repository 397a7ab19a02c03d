//! The deadline of an evaluation.

use std::time::{Duration, Instant};

/// The moment by which an evaluation must end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline that is `budget` from now.
    #[must_use]
    pub fn after(budget: Duration) -> Self {
        Self(Instant::now() + budget)
    }

    /// Returns the deadline at this moment.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Self(instant)
    }

    #[must_use]
    pub fn instant(self) -> Instant {
        self.0
    }

    #[must_use]
    pub fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }
}
