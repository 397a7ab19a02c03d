//! The pacing of an interpreter: its thread gives up its CPU priority when its evaluation is long.

use std::cell::Cell;
use std::time::Duration;

use super::SHORT;
use super::threads::{cpu_time, demote_this_thread, has_lowest_priority, yield_cpu};
use crate::Pacing;

thread_local! {
    /// The CPU time of this thread at which its evaluation is long.
    static LONG_FROM: Cell<Duration> = const { Cell::new(Duration::MAX) };
}

/// Runs an evaluation on this thread, which belongs to it alone. The evaluation does not panic.
pub(super) fn run<T>(pacing: Option<&Pacing>, evaluate: impl FnOnce() -> T) -> T {
    if pacing.is_some_and(Pacing::is_slow) && !has_lowest_priority() {
        demote_this_thread();
    }
    let long_from = if pacing.is_some() { cpu_time() + SHORT } else { Duration::MAX };
    LONG_FROM.set(long_from);
    let result = proviso_memory::with_pauses(pause, evaluate);
    if let Some(pacing) = pacing.filter(|_| cpu_time() >= long_from) {
        pacing.record_slow();
    }
    result
}

/// Lets other threads run if the evaluation is long.
fn pause() {
    if !has_lowest_priority() {
        if cpu_time() < LONG_FROM.get() {
            return;
        }
        demote_this_thread();
    }
    yield_cpu();
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proviso_shares::{Limits, Rank, Shares};

    use super::*;

    fn pacing() -> Pacing {
        Pacing::new(Shares::new(Limits::of(1)).account("a", None, Rank::Live))
    }

    /// Takes CPU time, with steps, until the condition holds.
    fn work(mut until: impl FnMut() -> bool) {
        let _ = proviso_memory::with_limit(1 << 20, || while !until() && proviso_memory::check().is_ok() {});
    }

    /// Returns true if an evaluation of this pacing, on a thread of its own, has the lowest priority after `work`.
    fn has_lowest_priority_after(pacing: &Pacing, work: impl FnOnce() + Send) -> bool {
        thread::scope(|scope| {
            let evaluation = scope.spawn(|| {
                run(Some(pacing), || {
                    work();
                    has_lowest_priority()
                })
            });
            evaluation.join().unwrap()
        })
    }

    #[test]
    fn a_long_evaluation_is_demoted_and_the_next_ones_from_their_beginning() {
        let pacing = pacing();
        assert!(!has_lowest_priority_after(&pacing, || {}));
        assert!(has_lowest_priority_after(&pacing, || work(has_lowest_priority)));
        for _ in 0..2 {
            assert!(has_lowest_priority_after(&pacing, || {}), "the ones after it, which are short");
        }
    }

    #[test]
    fn an_evaluation_without_pacing_keeps_its_priority() {
        let until = cpu_time() + 4 * SHORT;
        run(None, || work(|| cpu_time() >= until));
        assert!(!has_lowest_priority());
    }
}
