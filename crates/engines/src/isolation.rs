//! Runs a synchronous interpreter on a thread of its own, within a deadline. A panic of the interpreter fails the evaluation, and
//! the process goes on. A stack overflow would end the process, so the compilers bound the recursion of a program before it runs.
//!
//! The caller limits the number of these threads, by the places of the [`Budget`]s.

mod pacing;
mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout_at;

pub use threads::demote_this_thread;
#[cfg(feature = "wasm")]
pub(crate) use threads::{cpu_time, has_lowest_priority, yield_cpu};

use crate::{Budget, Deadline, EvaluationError, Shortage};

/// The CPU time that an evaluation gets at the normal CPU priority. An evaluation that needs more is long, and gets the lowest priority.
pub(crate) const SHORT: Duration = Duration::from_millis(5);
/// The interval at which the CPU time of an evaluation is read from outside. Most evaluations demote themselves when they are long. A single
/// long step, such as the call of a builtin, cannot.
const WATCH: Duration = Duration::from_millis(20);

/// Runs `evaluate` and waits for its result until the deadline. An evaluation that runs past its deadline keeps its place until it
/// ends. The error of one that gets no CPU before its deadline is [`EvaluationError::Overloaded`].
///
/// # Errors
/// The errors of `evaluate`, and [`EvaluationError::Failed`] if it panics or no thread can be started.
pub async fn run<T, F>(deadline: Deadline, evaluate: F) -> Result<T, EvaluationError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, EvaluationError> + Send + 'static,
{
    if deadline.has_passed() {
        return Err(EvaluationError::DeadlineExceeded);
    }
    let budget = Budget::current();
    let pacing = budget.as_ref().and_then(|budget| budget.pacing.clone());
    let is_paced = pacing.is_some();
    let (sender, mut receiver) = oneshot::channel();
    let has_begun = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&has_begun);
    let job = move || {
        let result = if deadline.has_passed() {
            Err(NOT_BEGUN)
        } else {
            begun.store(true, Ordering::Relaxed);
            pacing::run(pacing.as_ref(), || {
                catch_unwind(AssertUnwindSafe(evaluate))
                    .unwrap_or_else(|_| Err(EvaluationError::Failed("the interpreter panicked".into())))
            })
        };
        drop(budget);
        let _ = sender.send(result);
    };
    let running = threads::spawn(Box::new(job))
        .map_err(|error| EvaluationError::Failed(format!("the interpreter cannot start a thread: {error}")))?;
    let mut is_watched = is_paced;
    let ended = loop {
        let until = if is_watched { deadline.instant().min(Instant::now() + WATCH) } else { deadline.instant() };
        let ended = timeout_at(until.into(), &mut receiver).await;
        if ended.is_ok() || deadline.has_passed() {
            break ended;
        }
        is_watched = is_watched && !running.demote_after(SHORT);
    };
    match ended {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(EvaluationError::Failed("the thread of the interpreter has ended".into())),
        Err(_) => {
            if is_paced {
                // The result is of no use any more.
                running.demote_after(Duration::ZERO);
            }
            Err(if has_begun.load(Ordering::Relaxed) { EvaluationError::DeadlineExceeded } else { NOT_BEGUN })
        }
    }
}

/// The error of an evaluation that did not begin before its deadline.
pub(crate) const NOT_BEGUN: EvaluationError = EvaluationError::Overloaded(Shortage::Cpu);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use proviso_shares::{Limits, Rank, Shares};

    use super::*;

    const AMPLE: Duration = Duration::from_mins(1);
    const WAIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_panic_is_a_failed_evaluation() {
        let result = run(Deadline::after(AMPLE), || -> Result<(), _> { panic!("boom") }).await;
        assert_eq!(result, Err(EvaluationError::Failed("the interpreter panicked".into())));
        assert_eq!(run(Deadline::after(AMPLE), || Ok(1)).await, Ok(1), "the next evaluation runs");
    }

    #[tokio::test]
    async fn an_evaluation_past_its_deadline_keeps_its_place_until_it_ends() {
        let (places, memory) = (Shares::new(Limits::of(4)), Shares::new(Limits::of(1)));
        let place = places.account("a", None, Rank::Live);
        let memory = memory.account("a", None, Rank::Live);
        let budget = Budget { place: place.take(1).await, memory, pacing: None };
        let ((release, stuck), (begin, started)) = (mpsc::channel::<()>(), mpsc::channel());
        // The evaluation must have time to start, even on a busy machine.
        let deadline = Deadline::after(Duration::from_secs(1));
        let running = budget.run(run(deadline, move || {
            let _ = begin.send(());
            Ok(stuck.recv().is_ok())
        }));
        // The runtime fires timers in the order of their times, even if late: this timer fires after the deadline's timer.
        let result = timeout_at((deadline.instant() + WAIT).into(), running).await;
        assert_eq!(result, Ok(Err(EvaluationError::DeadlineExceeded)));
        assert!(started.try_recv().is_ok(), "the evaluation has started");
        assert!(place.take_within(1, WAIT).await.is_err(), "the stuck evaluation keeps its place");
        assert!(places.account("b", None, Rank::Live).take_now(1).is_some(), "another policy has its own places");
        drop(release);
        assert!(place.take_within(1, AMPLE).await.is_ok(), "the place is free when the stuck evaluation has ended");
    }

    #[tokio::test]
    async fn an_evaluation_does_not_start_after_its_deadline() {
        let (sender, receiver) = mpsc::channel();
        let result = run(Deadline::after(Duration::ZERO), move || Ok(sender.send(()))).await;
        assert_eq!(result.unwrap_err(), EvaluationError::DeadlineExceeded);
        assert!(receiver.recv().is_err(), "the evaluation was dropped without having run");
    }
}
