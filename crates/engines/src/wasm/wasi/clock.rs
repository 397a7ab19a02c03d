//! The clocks of guests.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The number of the wall clock in WASI.
const WALL: u32 = 0;
/// The number of the monotonic clock in WASI.
const MONOTONIC: u32 = 1;
/// The time of the monotonic clock when an instance starts, in nanoseconds. It is not 0, because Go's runtime stops at 0.
const MONOTONIC_START: u64 = 1_000_000_000;
/// The time of a stopped wall clock, in nanoseconds since 1970: the beginning of the year 2030.
const STOPPED_WALL: u64 = 1_893_456_000_000_000_000;

/// The clocks of one instance.
///
/// The monotonic clock starts with its instance, and always at the same time. A guest that reads it while a snapshot is
/// recorded therefore gets the time that it would read in every instance.
pub(in crate::wasm) struct Clocks {
    /// The start of the instance; `None` if the clocks stand still.
    started: Option<Instant>,
    has_read_wall: bool,
}

impl Clocks {
    /// Returns the clocks of an instance that starts now.
    pub(in crate::wasm) fn running() -> Self {
        Self { started: Some(Instant::now()), has_read_wall: false }
    }

    /// Returns clocks that stand still. Two runs of a guest read the same times from them.
    pub(in crate::wasm) fn stopped() -> Self {
        Self { started: None, has_read_wall: false }
    }

    /// Returns true if the guest has read the wall clock.
    pub(in crate::wasm) fn has_read_wall(&self) -> bool {
        self.has_read_wall
    }

    /// Returns the time of a clock for the guest, in nanoseconds: of the wall clock (0) since 1970, or of the monotonic clock
    /// (1). `None` for the other clocks of WASI, which measure CPU time, and for unknown clocks.
    pub(super) fn read(&mut self, clock: u32) -> Option<u64> {
        match clock {
            WALL => {
                self.has_read_wall = true;
                Some(if self.started.is_some() { host_time() } else { STOPPED_WALL })
            }
            MONOTONIC => {
                let elapsed = self.started.map_or(0, |started| nanoseconds(started.elapsed().as_nanos()));
                Some(MONOTONIC_START.saturating_add(elapsed))
            }
            _ => None,
        }
    }
}

/// Returns true if a guest can read the clock with this number.
pub(super) fn is_readable_clock(clock: u32) -> bool {
    matches!(clock, WALL | MONOTONIC)
}

fn host_time() -> u64 {
    nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos())
}

fn nanoseconds(nanoseconds: u128) -> u64 {
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}
