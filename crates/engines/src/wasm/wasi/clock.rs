//! The clocks of guests.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Returns the time of a clock in nanoseconds: 0 is the wall clock, 1 is the monotonic clock. `None` for the other clocks of
/// WASI, which measure CPU time, and for unknown clocks.
pub(super) fn clock_nanoseconds(clock: u32) -> Option<u64> {
    /// The start of the monotonic clock. The clock also counts from 1970, so that it never falls behind a time that a guest
    /// read in another process while its snapshot was recorded.
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
