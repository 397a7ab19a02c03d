//! When to try something again that failed.

use std::time::Duration;

/// The delays of an exponential backoff: each failure in a row doubles the delay.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// The delay after a failure that followed on `earlier` others.
    #[must_use]
    pub fn delay(self, earlier: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(earlier)).min(self.longest)
    }
}
