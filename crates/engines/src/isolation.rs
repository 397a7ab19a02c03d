//! Runs a synchronous interpreter on a blocking thread, within a deadline. A panic of the interpreter fails the evaluation, and the
//! process goes on. A stack overflow would end the process, so the compilers bound the recursion of a program before it runs.
//!
//! The caller limits the number of these threads, by the places of the [`Budget`]s.

use tokio::time::timeout_at;

use crate::{Budget, Deadline, EvaluationError};

/// Runs `evaluate` and waits for its result until the deadline. An evaluation that runs past its deadline keeps its place until it
/// ends.
pub(crate) async fn run<T, F>(deadline: Deadline, evaluate: F) -> Result<T, EvaluationError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, EvaluationError> + Send + 'static,
{
    let budget = Budget::current();
    let mut running = tokio::task::spawn_blocking(move || {
        let _budget = budget;
        if deadline.has_passed() { Err(EvaluationError::DeadlineExceeded) } else { evaluate() }
    });
    match timeout_at(deadline.instant().into(), &mut running).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) if error.is_panic() => Err(EvaluationError::Failed("the interpreter panicked".into())),
        Ok(Err(_)) => Err(EvaluationError::Failed("the server is shutting down".into())),
        Err(_) => {
            // This removes the task from the queue if no thread has started it.
            running.abort();
            Err(EvaluationError::DeadlineExceeded)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use proviso_shares::{Limits, Rank, Shares};

    use super::*;

    const AMPLE: Duration = Duration::from_mins(1);
    const SHORT: Duration = Duration::from_millis(50);

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
        let budget = Budget { place: place.take(1).await, memory, turns: None };
        let ((release, stuck), (begin, started)) = (mpsc::channel::<()>(), mpsc::channel());
        // The evaluation must have time to start, even on a busy machine.
        let deadline = Deadline::after(Duration::from_secs(1));
        let running = budget.run(run(deadline, move || {
            let _ = begin.send(());
            Ok(stuck.recv().is_ok())
        }));
        // The runtime fires timers in the order of their times, even if late: this timer fires after the deadline's timer.
        let result = timeout_at((deadline.instant() + SHORT).into(), running).await;
        assert_eq!(result, Ok(Err(EvaluationError::DeadlineExceeded)));
        assert!(started.try_recv().is_ok(), "the evaluation has started");
        assert!(place.take_within(1, SHORT).await.is_err(), "the stuck evaluation keeps its place");
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
