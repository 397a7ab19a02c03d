//! The pace of an evaluation. A short evaluation runs where its caller waits for it. A long one moves to a thread with the lowest CPU
//! priority, where it takes turns with other long evaluations: many endless loops at the same time take only the CPU time that nothing
//! else needs, and no more of it than a few loops.

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::context::TokioContext;
use tokio_util::task::AbortOnDropHandle;

use super::ticker::TICK;
use crate::isolation::{self, SHORT};
use crate::{EvaluationError, Pacing};

/// The number of ticks after which an evaluation is long: [`SHORT`].
const SHORT_TICKS: u64 = ticks(SHORT);
/// The turn of a long evaluation.
const TURN: Duration = Duration::from_millis(10);
const TURN_TICKS: u64 = ticks(TURN);

/// The runtime of long evaluations. Its threads have the lowest CPU priority. `None` if its threads cannot be started.
static LONG: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread()
        .thread_name("long-evaluation")
        .on_thread_start(|| {
            isolation::demote_this_thread();
        })
        .build();
    runtime.inspect_err(|error| tracing::error!(%error, "cannot start the threads for long evaluations")).ok()
});

/// The pace of one evaluation: what happens when a tick interrupts it.
pub(super) struct Pace {
    shared: Arc<Shared>,
}

/// Runs the evaluation that a [`Pace`] interrupts.
pub(super) struct Runner {
    shared: Arc<Shared>,
}

struct Shared {
    /// The pacing of the policy; `None` if the evaluation stays on the thread of its caller.
    pacing: Option<Pacing>,
    /// True if the evaluation is long from its beginning, because of the one before it.
    is_slow: bool,
    /// The number of ticks that have interrupted the evaluation.
    ticks: AtomicU64,
}

impl Shared {
    /// Returns the number of ticks since the evaluation is long; `None` if it is not.
    fn long_ticks(&self) -> Option<u64> {
        self.pacing.as_ref()?;
        let ticks = self.ticks.load(Ordering::Relaxed);
        // The first tick may interrupt an evaluation that has just begun.
        if self.is_slow { Some(ticks) } else { ticks.checked_sub(SHORT_TICKS + 1) }
    }

    /// Records whether the next evaluation of the policy begins as a long one.
    fn record<T>(&self, result: &Result<T, EvaluationError>) {
        // If the policy has taken all the memory of its share, its next evaluations may end soon, but come often.
        let has_no_memory = matches!(result, Err(EvaluationError::Overloaded));
        if let Some(pacing) = &self.pacing {
            pacing.set_slow(has_no_memory || self.ticks.load(Ordering::Relaxed) > SHORT_TICKS);
        }
    }
}

impl Pace {
    /// Makes the pace of one evaluation, and its runner.
    pub(super) fn new(pacing: Option<Pacing>) -> (Self, Runner) {
        let is_slow = pacing.as_ref().is_some_and(Pacing::is_slow);
        let shared = Arc::new(Shared { pacing, is_slow, ticks: AtomicU64::new(0) });
        (Self { shared: Arc::clone(&shared) }, Runner { shared })
    }

    /// Interrupts the evaluation at a tick. Returns the future that it waits for.
    pub(super) fn interrupt(&self) -> impl Future<Output = ()> + Send + use<> {
        self.shared.ticks.fetch_add(1, Ordering::Relaxed);
        let long_ticks = self.shared.long_ticks();
        if long_ticks.is_some() {
            // The evaluation may end at its deadline, without a result.
            if let Some(pacing) = &self.shared.pacing {
                pacing.set_slow(true);
            }
            // A thread that becomes ready does not always interrupt one of the lowest priority, but then waits for the end of its slice.
            thread::yield_now();
        }
        let pacing = self.shared.pacing.clone();
        let pacing = pacing.filter(|_| long_ticks.is_some_and(|ticks| ticks.is_multiple_of(TURN_TICKS)));
        async move {
            // Unlike wasmtime's own yield, tokio's lets the runtime poll for I/O before the guest continues.
            tokio::task::yield_now().await;
            if let Some(pacing) = pacing {
                let turn = pacing.turns().take(1).await;
                // The turn ends by itself, also if the guest waits for its host meanwhile.
                tokio::spawn(async move {
                    tokio::time::sleep(TURN).await;
                    drop(turn);
                });
            }
        }
    }
}

impl Runner {
    /// Runs an evaluation: on this thread while it is not long, and then on those of [`LONG`].
    pub(super) async fn run<T: Send + 'static>(
        self,
        evaluation: impl Future<Output = Result<T, EvaluationError>> + Send + 'static,
    ) -> Result<T, EvaluationError> {
        let shared = Arc::clone(&self.shared);
        let evaluation = async move {
            let result = evaluation.await;
            shared.record(&result);
            result
        };
        let mut evaluation = Box::pin(evaluation);
        let ended = poll_fn(|context| {
            if self.shared.long_ticks().is_some() {
                return Poll::Ready(None);
            }
            match evaluation.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending if self.shared.long_ticks().is_some() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        if let Some(result) = ended.await {
            return result;
        }
        let Some(long) = &*LONG else { return evaluation.await };
        // The runtime of the caller keeps the tasks that the host starts for the guest, such as a connection that others use too.
        let evaluation = TokioContext::new(evaluation, Handle::current());
        match AbortOnDropHandle::new(long.spawn(evaluation)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(EvaluationError::Failed(format!("the evaluation ended: {error}"))),
            },
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both are milliseconds in a small range")]
const fn ticks(time: Duration) -> u64 {
    (time.as_millis() / TICK.as_millis()) as u64
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use proviso_shares::{Limits, Rank, Shares};

    use super::*;

    const WAIT: Duration = Duration::from_millis(50);

    fn pacing(shares: &Shares, policy: &str) -> Pacing {
        Pacing::new(shares.account(policy, None, Rank::Live))
    }

    fn pace(shares: &Shares, policy: &str) -> (Pace, Runner) {
        Pace::new(Some(pacing(shares, policy)))
    }

    /// Interrupts an evaluation until it is long.
    async fn lengthen(pace: &Pace) {
        for _ in 0..SHORT_TICKS {
            pace.interrupt().await;
        }
    }

    #[tokio::test]
    async fn long_evaluations_take_turns() {
        let shares = Shares::new(Limits::of(1));
        let held = shares.account("holder", None, Rank::Live).take(1).await;
        let ((one, _), (two, _)) = (pace(&shares, "one"), pace(&shares, "two"));
        lengthen(&one).await;
        lengthen(&two).await;
        let waiting = tokio::time::timeout(WAIT, one.interrupt()).await;
        assert!(waiting.is_err(), "a long evaluation waits for its turn");
        drop(held);
        // Each turn ends by itself.
        for _ in 0..2 * TURN_TICKS {
            one.interrupt().await;
            two.interrupt().await;
        }
    }

    /// Returns the threads on which an evaluation runs: at first, and after each interruption.
    async fn threads((pace, runner): (Pace, Runner), interruptions: u64) -> Vec<ThreadId> {
        let evaluation = async move {
            let mut threads = vec![thread::current().id()];
            for _ in 0..interruptions {
                pace.interrupt().await;
                threads.push(thread::current().id());
            }
            Ok(threads)
        };
        runner.run(evaluation).await.unwrap()
    }

    #[tokio::test]
    async fn a_long_evaluation_continues_on_another_thread() {
        let shares = Shares::new(Limits::of(1));
        let here = thread::current().id();
        let threads = threads(pace(&shares, "a"), SHORT_TICKS + 1).await;
        let (last, short) = threads.split_last().unwrap();
        assert!(short.iter().all(|thread| *thread == here), "an evaluation begins on the thread of its caller");
        assert_ne!(*last, here);
    }

    #[tokio::test]
    async fn the_evaluation_after_a_long_one_begins_on_another_thread() {
        let shares = Shares::new(Limits::of(1));
        let here = thread::current().id();
        let pacing = pacing(&shares, "a");
        let first = async |ticks| threads(Pace::new(Some(pacing.clone())), ticks).await[0];
        assert_eq!(first(0).await, here);
        assert_eq!(first(SHORT_TICKS + 1).await, here, "the long one");
        assert_ne!(first(0).await, here, "the one after it, which is short");
        assert_eq!(first(0).await, here);
    }

    #[tokio::test]
    async fn an_evaluation_without_an_account_stays_on_its_thread() {
        let here = thread::current().id();
        assert!(threads(Pace::new(None), 3 * SHORT_TICKS).await.iter().all(|thread| *thread == here));
    }

    #[tokio::test]
    async fn a_long_evaluation_ends_when_its_caller_does_not_wait_any_more() {
        let shares = Shares::new(Limits::of(4));
        let places = shares.account("places", None, Rank::Live);
        let held = places.take(1).await;
        let (pace, runner) = pace(&shares, "a");
        let running = runner.run(async move {
            let _held = held;
            for _ in 0..u64::MAX {
                pace.interrupt().await;
            }
            Ok(())
        });
        assert!(tokio::time::timeout(WAIT, running).await.is_err());
        assert!(places.take_within(1, Duration::from_mins(1)).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_of_a_long_evaluation_reaches_its_caller() {
        let shares = Shares::new(Limits::of(1));
        let (pace, runner) = pace(&shares, "a");
        let evaluation = runner.run(async move {
            for interruption in 0..u64::MAX {
                assert!(interruption <= SHORT_TICKS, "boom");
                pace.interrupt().await;
            }
            Ok(())
        });
        assert!(tokio::spawn(evaluation).await.unwrap_err().is_panic());
    }
}
