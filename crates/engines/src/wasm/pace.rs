//! The pace of an evaluation. A short evaluation runs where its caller waits for it. A long one moves to a thread with the lowest CPU
//! priority, where it takes turns with other long evaluations: many endless loops at the same time take only the CPU time that nothing
//! else needs, and no more of it than a few loops.

use std::future::poll_fn;
use std::panic::{catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, TryLockError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::context::TokioContext;
use tokio_util::task::AbortOnDropHandle;

use crate::error::Shortage;
use crate::isolation::{self, SHORT, cpu_time};
use crate::{Budget, EvaluationError, Pacing};

/// The turn of a long evaluation, in CPU time.
const TURN: Duration = Duration::from_millis(10);

/// The runtime of long evaluations. Its threads have the lowest CPU priority. `None` if its threads cannot be started.
static LONG: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let build = || {
        Builder::new_multi_thread()
            .thread_name("long-evaluation")
            .on_thread_start(|| {
                isolation::demote_this_thread();
            })
            .build()
    };
    // tokio panics if it cannot start a thread.
    let runtime = catch_unwind(build).ok().and_then(Result::ok);
    if runtime.is_none() {
        tracing::error!("cannot start the threads for long evaluations: they keep the CPU priority of short ones");
    }
    runtime
});

/// The pace of one evaluation: the reaction to the ticks that interrupt it.
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
    /// True if the evaluation is long from its beginning, because of another one before it.
    is_slow: bool,
    cpu_time: CpuTime,
    /// The CPU time of the evaluation at which its next turn begins, in nanoseconds.
    next_turn: AtomicU64,
}

/// The CPU time of an evaluation that different threads poll, one after the other. In nanoseconds.
#[derive(Default)]
struct CpuTime {
    /// The time of all polls but the current one.
    of_polls: AtomicU64,
    /// The CPU time of the thread when the current poll began.
    poll_began: AtomicU64,
}

impl CpuTime {
    fn begin_poll(&self) {
        self.poll_began.store(nanos(cpu_time()), Ordering::Relaxed);
    }

    fn end_poll(&self) {
        self.of_polls.store(self.within_poll(), Ordering::Relaxed);
    }

    /// Returns the time until now, during a poll.
    fn within_poll(&self) -> u64 {
        let of_poll = nanos(cpu_time()).saturating_sub(self.poll_began.load(Ordering::Relaxed));
        self.of_polls.load(Ordering::Relaxed) + of_poll
    }

    /// Returns the time until now, between polls.
    fn between_polls(&self) -> u64 {
        self.of_polls.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Returns true if an evaluation that has taken this CPU time is long.
    fn is_long(&self, cpu_time: u64) -> bool {
        self.pacing.is_some() && (self.is_slow || cpu_time >= nanos(SHORT))
    }

    /// Records whether the next evaluations of the policy begin as long ones.
    fn record<T>(&self, result: &Result<T, EvaluationError>) {
        // If the policy has taken all the memory of its share, its next evaluations may end soon, but come often.
        let has_no_memory = matches!(result, Err(EvaluationError::Overloaded(Shortage::Memory)));
        if let Some(pacing) = &self.pacing
            && (has_no_memory || self.cpu_time.within_poll() >= nanos(SHORT))
        {
            pacing.record_slow();
        }
    }
}

impl Pace {
    /// Makes the pace of one evaluation, and its runner.
    pub(super) fn new(pacing: Option<Pacing>) -> (Self, Runner) {
        let is_slow = pacing.as_ref().is_some_and(Pacing::is_slow);
        let (cpu_time, next_turn) = (CpuTime::default(), AtomicU64::new(0));
        let shared = Arc::new(Shared { pacing, is_slow, cpu_time, next_turn });
        (Self { shared: Arc::clone(&shared) }, Runner { shared })
    }

    /// Interrupts the evaluation at a tick, while its runner polls it. Returns the future that it waits for.
    pub(super) fn interrupt(&self) -> impl Future<Output = ()> + Send + use<> {
        let turns = self.begin_turn();
        if turns.is_some() || isolation::has_lowest_priority() {
            isolation::yield_cpu();
        }
        async move {
            // Unlike wasmtime's own yield, tokio's lets the runtime poll for I/O before the guest continues.
            tokio::task::yield_now().await;
            if let Some(pacing) = turns {
                let turn = pacing.turns().take(1).await;
                // The turn ends by itself, also if the guest waits for its host meanwhile.
                tokio::spawn(async move {
                    tokio::time::sleep(TURN).await;
                    drop(turn);
                });
            }
        }
    }

    /// Returns the pacing if the evaluation is long, and its next turn begins.
    fn begin_turn(&self) -> Option<Pacing> {
        let pacing = self.shared.pacing.as_ref()?;
        let cpu_time = self.shared.cpu_time.within_poll();
        if !self.shared.is_long(cpu_time) {
            return None;
        }
        if cpu_time >= nanos(SHORT) {
            // The evaluation may end at its deadline, without a result.
            pacing.record_slow();
        }
        if cpu_time < self.shared.next_turn.load(Ordering::Relaxed) {
            return None;
        }
        self.shared.next_turn.store(cpu_time + nanos(TURN), Ordering::Relaxed);
        Some(pacing.clone())
    }
}

impl Runner {
    /// Runs an evaluation: on this thread while it is not long, and then on those of [`LONG`].
    pub(super) async fn run<T: Send + 'static>(
        self,
        evaluation: impl Future<Output = Result<T, EvaluationError>> + Send + 'static,
    ) -> Result<T, EvaluationError> {
        if self.shared.pacing.is_none() {
            return evaluation.await;
        }
        // Another task has no budget, but the builtins of compiled Rego need it: each holds the place of the evaluation.
        let evaluation = Budget::run_part(Budget::current(), evaluation);
        let mut evaluation = Box::pin(measured(Arc::clone(&self.shared), evaluation));
        let is_long = || self.shared.is_long(self.shared.cpu_time.between_polls());
        let ended = poll_fn(|context| {
            if is_long() {
                return Poll::Ready(None);
            }
            match evaluation.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending if is_long() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        if let Some(result) = ended.await {
            return result;
        }
        let Some(long) = &*LONG else { return evaluation.await };
        // The runtime of the caller keeps the tasks that the host starts for the guest, such as a connection that others use too.
        let evaluation = Evaluation::new(TokioContext::new(evaluation, Handle::current()));
        let running = AbortOnDropHandle::new(long.spawn(evaluation.clone().run()));
        // If this caller does not wait any more, the evaluation is dropped here: a thread of `long` may get a CPU only much later.
        let _drop = EndOnDrop(evaluation);
        match running.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(EvaluationError::Failed(format!("the evaluation ended: {error}"))),
            },
        }
    }
}

/// Measures the CPU time of an evaluation, and records its result.
async fn measured<T>(
    shared: Arc<Shared>,
    evaluation: impl Future<Output = Result<T, EvaluationError>>,
) -> Result<T, EvaluationError> {
    let mut evaluation = std::pin::pin!(async {
        let result = evaluation.await;
        shared.record(&result);
        result
    });
    poll_fn(|context| {
        shared.cpu_time.begin_poll();
        let polled = evaluation.as_mut().poll(context);
        shared.cpu_time.end_poll();
        polled
    })
    .await
}

/// A long evaluation, which its caller can end while no thread polls it.
struct Evaluation<F>(Arc<Mutex<Option<Pin<Box<F>>>>>);

impl<F> Clone for Evaluation<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T, F: Future<Output = Result<T, EvaluationError>>> Evaluation<F> {
    fn new(evaluation: F) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::pin(evaluation)))))
    }

    async fn run(self) -> Result<T, EvaluationError> {
        poll_fn(|context| {
            let mut evaluation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match evaluation.as_mut() {
                Some(evaluation) => evaluation.as_mut().poll(context),
                None => Poll::Ready(Err(EvaluationError::Failed("the evaluation was ended".into()))),
            }
        })
        .await
    }
}

/// Ends an evaluation when it is dropped, unless a thread polls it.
struct EndOnDrop<F>(Evaluation<F>);

impl<F> Drop for EndOnDrop<F> {
    fn drop(&mut self) {
        let evaluation = match self.0.0.try_lock() {
            Ok(mut evaluation) => evaluation.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            // The task of the evaluation drops it after the poll.
            Err(TryLockError::WouldBlock) => None,
        };
        drop(evaluation);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use proviso_shares::{Limits, Rank, Shares};
    use tokio::time::timeout;

    use super::*;

    const WAIT: Duration = Duration::from_millis(50);
    const AMPLE: Duration = Duration::from_mins(1);

    fn pacing(shares: &Shares, policy: &str) -> Pacing {
        Pacing::new(shares.account(policy, None, Rank::Live))
    }

    fn pace(shares: &Shares, policy: &str) -> (Pace, Runner) {
        Pace::new(Some(pacing(shares, policy)))
    }

    /// Takes CPU time on this thread.
    fn work(time: Duration) {
        let until = cpu_time() + time;
        while cpu_time() < until {}
    }

    /// Runs an evaluation of `steps` steps, each of which takes this CPU time, and is followed by an interruption. Returns the threads on which
    /// it runs: at first, and after each interruption.
    async fn threads((pace, runner): (Pace, Runner), steps: u32, time: Duration) -> Vec<ThreadId> {
        let evaluation = async move {
            let mut threads = vec![thread::current().id()];
            for _ in 0..steps {
                work(time);
                pace.interrupt().await;
                threads.push(thread::current().id());
            }
            Ok(threads)
        };
        runner.run(evaluation).await.unwrap()
    }

    #[tokio::test]
    async fn long_evaluations_take_turns() {
        let shares = Shares::new(Limits::of(1));
        let held = shares.account("holder", None, Rank::Live).take(1).await;
        let both = async { tokio::join!(threads(pace(&shares, "a"), 5, TURN), threads(pace(&shares, "b"), 5, TURN)) };
        let mut both = std::pin::pin!(both);
        assert!(timeout(WAIT, both.as_mut()).await.is_err(), "a long evaluation waits for its turn");
        drop(held);
        // Each turn ends by itself.
        assert!(timeout(AMPLE, both).await.is_ok());
    }

    #[tokio::test]
    async fn a_long_evaluation_continues_on_another_thread() {
        let shares = Shares::new(Limits::of(1));
        let here = thread::current().id();
        let threads = threads(pace(&shares, "a"), 2, SHORT * 2 / 3).await;
        assert_eq!(threads[..2], [here, here], "an evaluation begins on the thread of its caller");
        assert_ne!(threads[2], here);
    }

    #[tokio::test]
    async fn a_long_evaluation_keeps_its_budget() {
        let shares = Shares::new(Limits::of(1));
        let place = shares.account("a", None, Rank::Live).take(1).await;
        let memory = shares.account("a", None, Rank::Live);
        let budget = Budget { place, memory, pacing: Some(pacing(&Shares::new(Limits::of(1)), "a")) };
        let (here, (slow, runner)) = (thread::current().id(), Pace::new(budget.pacing.clone()));
        let running = budget.run(runner.run(async move {
            work(SHORT);
            slow.interrupt().await;
            Ok((thread::current().id(), Budget::current().is_some()))
        }));
        let (there, has_budget) = running.await.unwrap();
        assert!(there != here && has_budget);
    }

    #[tokio::test]
    async fn an_evaluation_that_only_waits_is_not_long() {
        let shares = Shares::new(Limits::of(1));
        let here = thread::current().id();
        let (pace, runner) = pace(&shares, "a");
        let evaluation = async move {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                pace.interrupt().await;
            }
            Ok(thread::current().id())
        };
        assert_eq!(runner.run(evaluation).await, Ok(here));
    }

    #[tokio::test]
    async fn the_evaluations_after_a_long_one_begin_on_another_thread() {
        let shares = Shares::new(Limits::of(1));
        let here = thread::current().id();
        let pacing = pacing(&shares, "a");
        let first = async |steps| threads(Pace::new(Some(pacing.clone())), steps, SHORT).await[0];
        assert_eq!(first(0).await, here);
        assert_eq!(first(1).await, here, "the long one");
        for _ in 0..2 {
            assert_ne!(first(0).await, here, "the ones after it, which are short");
        }
    }

    #[tokio::test]
    async fn the_evaluations_after_one_without_memory_begin_on_another_thread() {
        let shares = Shares::new(Limits::of(1));
        let pacing = pacing(&shares, "a");
        let (_pace, runner) = Pace::new(Some(pacing.clone()));
        let overloaded = Err::<(), _>(EvaluationError::Overloaded(Shortage::Memory));
        assert_eq!(runner.run(std::future::ready(overloaded.clone())).await, overloaded);
        assert_ne!(threads(Pace::new(Some(pacing)), 0, SHORT).await[0], thread::current().id());
    }

    #[tokio::test]
    async fn an_evaluation_without_an_account_stays_on_its_thread() {
        let here = thread::current().id();
        assert!(threads(Pace::new(None), 3, SHORT).await.iter().all(|thread| *thread == here));
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
                work(SHORT);
                pace.interrupt().await;
            }
            Ok(())
        });
        assert!(timeout(WAIT, running).await.is_err());
        assert!(places.take_within(1, AMPLE).await.is_ok());
    }

    #[tokio::test]
    async fn a_long_evaluation_that_waits_for_its_turn_is_dropped_by_its_caller() {
        let shares = Shares::new(Limits::of(1));
        let _held = shares.account("holder", None, Rank::Live).take(1).await;
        let (alive, (pace, runner)) = (Arc::new(()), pace(&shares, "a"));
        let owned = Arc::clone(&alive);
        let running = runner.run(async move {
            for _ in 0..u64::MAX {
                work(SHORT);
                pace.interrupt().await;
            }
            drop(owned);
            Ok(())
        });
        assert!(timeout(WAIT, running).await.is_err());
        let dropped = async {
            while Arc::strong_count(&alive) > 1 {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(AMPLE, dropped).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_of_a_long_evaluation_reaches_its_caller() {
        let shares = Shares::new(Limits::of(1));
        let (pace, runner) = pace(&shares, "a");
        let evaluation = runner.run(async move {
            let here = thread::current().id();
            for _ in 0..u64::MAX {
                assert_eq!(thread::current().id(), here, "boom");
                work(SHORT);
                pace.interrupt().await;
            }
            Ok(())
        });
        assert!(tokio::spawn(evaluation).await.unwrap_err().is_panic());
    }
}
