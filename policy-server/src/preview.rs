//! Previews (AIP-236): ACTIVE experiments are evaluated on live requests, after the live answer is sent. The queue has a maximum
//! length, and a full queue drops requests instead of delaying them. By default, the worker runs at the lowest CPU priority, so
//! that previews do not slow down live requests.

mod counter;
mod line;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::ready;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use proviso_core::matching::Labels;
use proviso_core::{Divergence, Failure, Review, Verdict};
use proviso_engines::EvaluationError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::config::PreviewPriority;
use crate::decide::{Overloaded, evaluate, exclusion, is_excluded_by_conditions};
use crate::table::{Experiment, Revision};
use line::Line;

pub use counter::{DivergenceCounter, now};

/// The maximum number of concurrent evaluations of experiments.
const CONCURRENCY: u32 = 4;
/// The maximum memory of queued reviews, in KiB: 64 MiB.
const QUEUE_KIB: usize = 64 * 1024;

/// A request, and the experiments to evaluate for it.
#[derive(Debug)]
pub struct Job {
    pub live: Live,
    pub experiments: Arc<[Arc<Experiment>]>,
    /// The experiments that are previewed only if their `matchConditions` exclude the request. If the conditions do not exclude
    /// it, the API server calls the webhooks of these experiments.
    pub undetermined: Vec<Arc<Experiment>>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    pub review: Review,
    /// The arrival time of the request. Previews do not end in the order of their requests.
    pub arrived_at: Timestamp,
}

/// The live verdict, with which an experiment is compared.
#[derive(Debug)]
pub enum Live {
    /// The verdict that answered the request.
    Answered { revision: Arc<Revision>, verdict: Verdict },
    /// The live revision, which was not asked about the request; `None` if no revision is live.
    NotAsked(Option<Arc<Revision>>),
}

impl Live {
    fn revision(&self) -> Option<&Arc<Revision>> {
        match self {
            Self::Answered { revision, .. } => Some(revision),
            Self::NotAsked(revision) => revision.as_ref(),
        }
    }

    /// Returns the verdict that answered the request, or that would have answered it. The latter is neither counted nor logged as
    /// a decision.
    async fn verdict(&self, job: &Job) -> Result<Cow<'_, Verdict>, Overloaded> {
        let revision = match self {
            Self::Answered { verdict, .. } => return Ok(Cow::Borrowed(verdict)),
            Self::NotAsked(None) => return Ok(Cow::Owned(Verdict::allow())),
            Self::NotAsked(Some(revision)) if is_excluded(revision, &job.review).await => {
                return Ok(Cow::Owned(Verdict::allow()));
            }
            Self::NotAsked(Some(revision)) => revision,
        };
        match hypothetical_verdict(revision, &job.review, &job.namespaces).await {
            Ok(verdict) => Ok(Cow::Owned(verdict)),
            Err(EvaluationError::Overloaded) => Err(Overloaded),
            Err(error) => Ok(Cow::Owned(Failure::from(&error).verdict().enforce(&revision.enforcement))),
        }
    }
}

/// The sender of the preview queue.
#[derive(Clone, Debug)]
pub struct PreviewQueue {
    jobs: mpsc::Sender<(Job, OwnedSemaphorePermit)>,
    memory: Arc<Semaphore>,
}

/// A future that resolves when the worker ends: when all [`PreviewQueue`]s are dropped and the queue is empty.
pub type Worker = oneshot::Receiver<()>;

impl PreviewQueue {
    /// Starts the worker with a queue of this capacity. The worker uses at most a quarter of the `engine_permits` for concurrent
    /// evaluations, so that live requests find free ones.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(capacity: usize, engine_permits: u32, priority: PreviewPriority) -> io::Result<(Self, Worker)> {
        let (jobs, receiver) = mpsc::channel(capacity);
        let concurrency = (engine_permits / 4).clamp(1, CONCURRENCY);
        let (ended, worker) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new().name("preview".to_owned()).spawn(move || {
            if priority == PreviewPriority::Idle
                && let Err(error) = set_idle_priority()
            {
                tracing::warn!(%error, "cannot lower the CPU priority: previews run at normal priority");
            }
            runtime.block_on(proviso_tasks::exit_on_panic("previews", run_worker(receiver, concurrency)));
            // The receiver is dropped if the server did not wait for the previews.
            let _ = ended.send(());
        })?;
        Ok((Self { jobs, memory: Arc::new(Semaphore::new(QUEUE_KIB)) }, worker))
    }

    /// Queues a job. If the queue is full, counts the request as dropped. Never waits.
    pub fn offer(&self, job: Job) {
        let experiments = Arc::clone(&job.experiments);
        let kib = u32::try_from(job.review.size() / 1024 + 1).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).try_acquire_many_owned(kib);
        if !memory.is_ok_and(|memory| self.jobs.try_send((job, memory)).is_ok()) {
            for experiment in experiments.iter() {
                experiment.count_dropped();
            }
        }
    }
}

/// Sets the scheduling policy `SCHED_IDLE` for this thread, and for the threads that it starts (the blocking pool of its
/// runtime). The scheduler treats a CPU that only runs such threads as idle, so a live request gets it at once. With nice 19
/// instead, a live request would wait for the end of the time slice.
#[cfg(target_os = "linux")]
fn set_idle_priority() -> Result<(), thread_priority::Error> {
    use thread_priority::{NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    thread_priority::set_thread_priority_and_policy(thread_priority::thread_native_id(), ThreadPriority::Min, policy)
}

/// Does nothing: only Linux has such a priority.
#[cfg(not(target_os = "linux"))]
fn set_idle_priority() -> Result<(), std::convert::Infallible> {
    Ok(())
}

async fn run_worker(mut receiver: mpsc::Receiver<(Job, OwnedSemaphorePermit)>, concurrency: u32) {
    let permits = Arc::new(Semaphore::new(concurrency as usize));
    while let Some((job, _memory)) = receiver.recv().await {
        let job = Arc::new(job);
        let determined = job.experiments.iter().map(|experiment| (experiment, true));
        let undetermined = job.undetermined.iter().map(|experiment| (experiment, false));
        for (experiment, is_determined) in determined.chain(undetermined) {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let (job, experiment) = (Arc::clone(&job), Arc::clone(experiment));
            tokio::spawn(async move {
                if is_determined {
                    let verdict = hypothetical_verdict(&experiment.revision, &job.review, &job.namespaces);
                    preview(&job, &experiment, verdict).await;
                } else if is_excluded(&experiment.revision, &job.review).await {
                    preview(&job, &experiment, ready(Ok(Verdict::allow()))).await;
                }
                drop(permit);
            });
        }
    }
    // Wait for the running jobs before the runtime ends.
    let _ = permits.acquire_many(concurrency).await;
}

/// Compares the verdict of an experiment with the live verdict. Writes one preview line and counts one divergence.
async fn preview(job: &Job, experiment: &Experiment, verdict: impl Future<Output = Result<Verdict, EvaluationError>>) {
    let Ok(live) = job.live.verdict(job).await else { return experiment.count_dropped() };
    let start = Instant::now();
    let verdict = match verdict.await {
        // Live requests hold all evaluation permits. This is no failure of the experiment.
        Err(EvaluationError::Overloaded) => return experiment.count_dropped(),
        verdict => verdict.map_err(|error| Failure::from(&error)),
    };
    let duration = start.elapsed();
    let verdict = verdict.as_ref();
    let divergence = compare(&live, verdict, &job.review);
    experiment.observe(divergence, &job.review, job.arrived_at, message(divergence, &live, verdict));
    let answered_by = job.live.revision().map(Arc::as_ref);
    write(&Line::new(&job.review, answered_by, &live, experiment, verdict, divergence, duration));
}

/// Returns the message of the denial: that of the live policy if only the live policy denies, otherwise that of the experiment.
fn message<'a>(
    divergence: Divergence,
    live: &'a Verdict,
    experiment: Result<&'a Verdict, &'a Failure>,
) -> Option<&'a str> {
    match (divergence, experiment) {
        (Divergence::NewlyAllowed, _) => live.message.as_deref(),
        (_, Ok(verdict)) => verdict.message.as_deref(),
        (_, Err(failure)) => Some(&failure.message),
    }
}

/// Returns the verdict that the revision would answer if it were live. No API server has matched the request with this revision, so
/// this server does.
async fn hypothetical_verdict(
    revision: &Revision,
    review: &Review,
    namespaces: &BTreeMap<String, Labels>,
) -> Result<Verdict, EvaluationError> {
    if exclusion(revision, review, namespaces).await?.is_some() {
        return Ok(Verdict::allow());
    }
    Ok(evaluate(revision, review).await?.enforce(&revision.enforcement))
}

/// Returns true if the `matchConditions` of the revision exclude the request. If the evaluation of the conditions fails, the
/// request counts as not excluded.
async fn is_excluded(revision: &Revision, review: &Review) -> bool {
    is_excluded_by_conditions(revision, review).await.unwrap_or(false)
}

fn compare(live: &Verdict, experiment: Result<&Verdict, &Failure>, review: &Review) -> Divergence {
    let patches = live.patch.is_some() || experiment.is_ok_and(|verdict| verdict.patch.is_some());
    let object = patches.then(|| review.object_json()).flatten();
    let object = object.and_then(|json| proviso_core::review::parse(json).ok());
    Divergence::between(live, experiment, object.as_ref())
}

fn write(line: &Line<'_>) {
    // Each line is one write, so that the lines of several threads do not mix. A closed stdout must not end the server.
    if let Err(error) = io::stdout().lock().write_all(line.to_text().as_bytes()) {
        tracing::debug!(%error, "cannot write a preview line");
    }
}
