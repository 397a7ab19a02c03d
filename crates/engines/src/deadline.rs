//! The deadline of an evaluation.

use std::time::{Duration, Instant};

/// When an evaluation must have ended.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    #[must_use]
    pub fn after(budget: Duration) -> Self {
        Self(Instant::now() + budget)
    }

    #[must_use]
    pub fn instant(self) -> Instant {
        self.0
    }

    #[must_use]
    pub fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}
