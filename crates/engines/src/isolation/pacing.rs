//! The pacing of an interpreter: its thread gives up its CPU priority when its evaluation is long.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::SHORT;
use super::threads::{demote_this_thread, is_demoted};
use crate::Pacing;

thread_local! {
    /// The CPU time of this thread at which its evaluation is long.
    static LONG_FROM: Cell<Duration> = const { Cell::new(Duration::MAX) };
}

/// Runs an evaluation on this thread, which belongs to it alone.
pub(super) fn run<T>(pacing: Option<&Pacing>, evaluate: impl FnOnce() -> T) -> T {
    let Some(pacing) = pacing else { return evaluate() };
    if pacing.is_slow() {
        demote_this_thread();
    }
    let long_from = cpu_time() + SHORT;
    LONG_FROM.set(long_from);
    let result = proviso_memory::with_pauses(pause, evaluate);
    pacing.set_slow(cpu_time() >= long_from);
    result
}

/// Lets other threads run if the evaluation is long.
fn pause() {
    if !is_demoted() {
        if cpu_time() < LONG_FROM.get() {
            return;
        }
        demote_this_thread();
    }
    // A thread that becomes ready does not always interrupt one of the lowest priority, but then waits for the end of its slice.
    thread::yield_now();
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proviso_shares::{Limits, Rank, Shares};

    use super::*;

    fn pacing() -> Pacing {
        Pacing::new(Shares::new(Limits::of(1)).account("a", None, Rank::Live))
    }

    /// Takes CPU time, with steps, until the condition holds.
    fn work(mut until: impl FnMut() -> bool) {
        let _ = proviso_memory::with_limit(1 << 20, || while !until() && proviso_memory::check().is_ok() {});
    }

    /// Returns true if an evaluation of this pacing, on a thread of its own, is demoted after `work`.
    fn is_demoted_after(pacing: &Pacing, work: impl FnOnce() + Send) -> bool {
        thread::scope(|scope| {
            let evaluation = scope.spawn(|| {
                run(Some(pacing), || {
                    work();
                    is_demoted()
                })
            });
            evaluation.join().unwrap()
        })
    }

    #[test]
    fn a_long_evaluation_is_demoted_and_the_next_one_from_its_beginning() {
        let pacing = pacing();
        assert!(!is_demoted_after(&pacing, || {}));
        assert!(is_demoted_after(&pacing, || work(is_demoted)));
        assert!(is_demoted_after(&pacing, || {}), "the one after it, which is short");
        assert!(!is_demoted_after(&pacing, || {}));
    }

    #[test]
    fn an_evaluation_without_pacing_keeps_its_priority() {
        let until = cpu_time() + 4 * SHORT;
        run(None, || work(|| cpu_time() >= until));
        assert!(!is_demoted());
    }
}
