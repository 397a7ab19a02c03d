//! Pauses of a piece of work, which only knows its steps: the checks of its memory.

use std::cell::Cell;

/// The number of steps between two pauses. Interpreters take some 50 to 500 µs for them.
const STEPS: u32 = 256;

thread_local! {
    static STEPS_LEFT: Cell<u32> = const { Cell::new(STEPS) };
    static PAUSE: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Restores the pauses of the enclosing work, also after a panic.
struct Restore(Option<fn()>);

impl Drop for Restore {
    fn drop(&mut self) {
        PAUSE.set(self.0);
    }
}

/// Runs work on this thread that has a memory limit, and calls `pause` at every 256th of its [checks](crate::check).
pub fn with_pauses<T>(pause: fn(), work: impl FnOnce() -> T) -> T {
    let _restore = Restore(PAUSE.replace(Some(pause)));
    work()
}

/// Counts a step of the work on this thread.
#[inline]
pub(crate) fn count_step() {
    let left = STEPS_LEFT.get().saturating_sub(1);
    STEPS_LEFT.set(left);
    if left == 0 {
        pause();
    }
}

#[cold]
fn pause() {
    STEPS_LEFT.set(STEPS);
    if let Some(pause) = PAUSE.get() {
        pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, with_limit};

    thread_local! {
        static PAUSES: Cell<u32> = const { Cell::new(0) };
    }

    fn count_pause() {
        PAUSES.set(PAUSES.get() + 1);
    }

    #[test]
    fn work_pauses_at_its_steps() {
        let work = || with_limit(1 << 20, || (0..10 * STEPS).all(|_| check().is_ok()));
        assert_eq!(with_pauses(count_pause, work), Ok(true));
        assert_eq!(PAUSES.get(), 10);
        assert_eq!(work(), Ok(true));
        assert_eq!(PAUSES.get(), 10, "the work after it has no pauses");
    }
}
