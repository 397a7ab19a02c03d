//! Runs a synchronous interpreter on a blocking thread, within a deadline and with a bounded number of concurrent evaluations.
//! A panic of the interpreter fails the evaluation, and the process goes on. A stack overflow would end the process, so the
//! compilers bound the recursion of a program before it runs.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::{Deadline, EvaluationError};

/// The minimum number of evaluation slots of one program.
const MIN_SLOTS: usize = 8;

/// The evaluation slots that a program shares with its clones.
#[derive(Clone, Debug)]
pub(crate) struct Isolation {
    slots: Arc<Semaphore>,
}

impl Isolation {
    /// Creates twice as many slots as there are processors, but at least eight. More slots would not make evaluations faster,
    /// and a program whose evaluations never end must not occupy every blocking thread.
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::with_slots(MIN_SLOTS.max(2 * processors))
    }

    fn with_slots(slots: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slots)) }
    }

    /// Runs `evaluate` and waits for its result until the deadline. An evaluation that runs past its deadline keeps its slot
    /// until it ends.
    pub(crate) async fn run<T, F>(&self, deadline: Deadline, evaluate: F) -> Result<T, EvaluationError>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, EvaluationError> + Send + 'static,
    {
        let until = deadline.instant().into();
        let Ok(Ok(slot)) = timeout_at(until, Arc::clone(&self.slots).acquire_owned()).await else {
            return Err(EvaluationError::Overloaded);
        };
        let mut running = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            if deadline.has_passed() { Err(EvaluationError::DeadlineExceeded) } else { evaluate() }
        });
        match timeout_at(until, &mut running).await {
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
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const AMPLE: Duration = Duration::from_mins(1);
    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_panic_is_a_failed_evaluation() {
        let isolation = Isolation::new();
        let result = isolation.run(Deadline::after(AMPLE), || -> Result<(), _> { panic!("boom") }).await;
        assert_eq!(result, Err(EvaluationError::Failed("the interpreter panicked".into())));
        assert_eq!(isolation.run(Deadline::after(AMPLE), || Ok(1)).await, Ok(1), "the next evaluation runs");
    }

    #[tokio::test]
    async fn a_stuck_evaluation_keeps_only_its_own_slot() {
        let isolation = Isolation::with_slots(1);
        let ((release, stuck), (begin, started)) = (mpsc::channel::<()>(), mpsc::channel());
        // The evaluation must have time to start, even on a busy machine.
        let deadline = Deadline::after(Duration::from_secs(1));
        let running = isolation.run(deadline, move || {
            let _ = begin.send(());
            Ok(stuck.recv().is_ok())
        });
        // The runtime fires timers in the order of their times, even if late: this timer fires after the deadline's timer.
        let result = timeout_at((deadline.instant() + SHORT).into(), running).await;
        assert_eq!(result, Ok(Err(EvaluationError::DeadlineExceeded)));
        assert!(started.try_recv().is_ok(), "the evaluation has started");
        let other = Isolation::with_slots(1).run(Deadline::after(AMPLE), || Ok(())).await;
        assert_eq!(other, Ok(()), "another program has its own slots");
        let result = isolation.run(Deadline::after(SHORT), || Ok(true)).await;
        assert_eq!(result, Err(EvaluationError::Overloaded), "the stuck evaluation keeps its slot");
        drop(release);
        let result = isolation.run(Deadline::after(AMPLE), || Ok(true)).await;
        assert_eq!(result, Ok(true), "the slot is free again when the stuck evaluation ends");
    }

    #[tokio::test]
    async fn an_evaluation_does_not_start_after_its_deadline() {
        let (sender, receiver) = mpsc::channel();
        let result = Isolation::new().run(Deadline::after(Duration::ZERO), move || Ok(sender.send(()))).await;
        assert!(matches!(result, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded)), "{result:?}");
        assert!(receiver.recv().is_err(), "the evaluation was dropped without having run");
    }
}
