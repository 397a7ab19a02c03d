//! The clocks of guests.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Returns the time of a clock: 0 is the wall clock, 1 the monotonic one. Guests see no CPU time.
pub(super) fn clock_nanoseconds(clock: u32) -> Option<u64> {
    /// The monotonic clock counts from 1970 too, so that it is ahead of what a guest saw when its initialised
    /// memory was recorded, in another process.
    static START: LazyLock<(Instant, u64)> = LazyLock::new(|| (Instant::now(), wall_clock()));
    match clock {
        0 => Some(wall_clock()),
        1 => Some(START.1.saturating_add(u64::try_from(START.0.elapsed().as_nanos()).unwrap_or(u64::MAX))),
        _ => None,
    }
}

fn wall_clock() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}
