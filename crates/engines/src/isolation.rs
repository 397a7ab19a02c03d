//! Runs a synchronous interpreter where it can hold up nobody: on a thread of its own, within a deadline,
//! and with only so many at once. A panic inside is a failed evaluation, not a failed process. A stack
//! overflow cannot be contained like that: the compilers bound recursion before anything runs.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::{Deadline, EvaluationError};

/// The fewest evaluations of one program that run at once.
const FEWEST_PLACES: usize = 8;

/// The places in which evaluations of one program run, and of its clones.
#[derive(Clone, Debug)]
pub(crate) struct Isolation {
    places: Arc<Semaphore>,
}

impl Isolation {
    /// Twice the number of processors, but at least eight: more would not be faster, and a program whose
    /// evaluations never end must not take every thread that others need.
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::with_places(FEWEST_PLACES.max(2 * processors))
    }

    fn with_places(places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places)) }
    }

    /// Runs `evaluate` and waits for it until the deadline; what is still stuck then keeps its place until
    /// it ends.
    pub(crate) async fn run<T, F>(&self, deadline: Deadline, evaluate: F) -> Result<T, EvaluationError>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, EvaluationError> + Send + 'static,
    {
        let until = deadline.instant().into();
        let Ok(Ok(place)) = timeout_at(until, Arc::clone(&self.places).acquire_owned()).await else {
            return Err(EvaluationError::Overloaded);
        };
        let mut running = tokio::task::spawn_blocking(move || {
            let _place = place;
            if deadline.is_over() { Err(EvaluationError::DeadlineExceeded) } else { evaluate() }
        });
        match timeout_at(until, &mut running).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) if error.is_panic() => Err(EvaluationError::Failed("the interpreter panicked".into())),
            Ok(Err(_)) => Err(EvaluationError::Failed("the server is shutting down".into())),
            Err(_) => {
                // Takes it off the queue if no thread has begun with it.
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
        assert_eq!(isolation.run(Deadline::after(AMPLE), || Ok(1)).await, Ok(1), "the next one runs");
    }

    #[tokio::test]
    async fn nobody_waits_for_what_is_stuck() {
        let isolation = Isolation::with_places(1);
        let ((release, stuck), (begin, started)) = (mpsc::channel::<()>(), mpsc::channel());
        // Long enough to begin, also on a busy machine.
        let deadline = Deadline::after(Duration::from_secs(1));
        let running = isolation.run(deadline, move || {
            let _ = begin.send(());
            Ok(stuck.recv().is_ok())
        });
        // The runtime fires its timers in the order of their times, however late: this one is the second.
        let result = timeout_at((deadline.instant() + SHORT).into(), running).await;
        assert_eq!(result, Ok(Err(EvaluationError::DeadlineExceeded)));
        assert!(started.try_recv().is_ok(), "it has begun");
        let other = Isolation::with_places(1).run(Deadline::after(AMPLE), || Ok(())).await;
        assert_eq!(other, Ok(()), "another program has its own places");
        let result = isolation.run(Deadline::after(SHORT), || Ok(true)).await;
        assert_eq!(result, Err(EvaluationError::Overloaded), "what is stuck keeps its place");
        drop(release);
        let result = isolation.run(Deadline::after(AMPLE), || Ok(true)).await;
        assert_eq!(result, Ok(true), "and gives it back when it ends");
    }

    #[tokio::test]
    async fn nothing_starts_after_its_deadline() {
        let (sender, receiver) = mpsc::channel();
        let result = Isolation::new().run(Deadline::after(Duration::ZERO), move || Ok(sender.send(()))).await;
        assert!(matches!(result, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded)), "{result:?}");
        assert!(receiver.recv().is_err(), "the evaluation was dropped without having run");
    }
}
