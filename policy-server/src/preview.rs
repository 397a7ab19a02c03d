//! Previews (AIP-236): ACTIVE experiments are evaluated on live traffic after the live answer has left. The queue is
//! bounded and never waits; the workers run at the lowest priority, so that live requests do not feel them, unless the
//! server is told otherwise.

mod line;
mod tally;

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
use crate::decide::{Overloaded, evaluate, exemption, left_out};
use crate::table::{Experiment, Revision};
use line::Line;

pub use tally::{Tally, now};

/// The most experiments that are evaluated at the same time.
const CONCURRENCY: u32 = 4;
/// The most memory that queued reviews may take, in KiB: 64 MiB.
const QUEUE_KIB: usize = 64 * 1024;

/// A request that was answered, and the experiments to ask about it.
#[derive(Debug)]
pub struct Job {
    pub live: Live,
    pub experiments: Arc<[Arc<Experiment>]>,
    /// These only if their `matchConditions` leave the request out: else their own webhook is asked about it.
    pub unsure: Vec<Arc<Experiment>>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    pub review: Review,
    /// When it came: the previews of several end in any order.
    pub seen: Timestamp,
}

/// What the experiments are compared with.
#[derive(Debug)]
pub enum Live {
    /// The verdict as it left.
    Answered { revision: Arc<Revision>, verdict: Verdict },
    /// What would answer, if the API server asked the policy too; none if there is nothing that would.
    Unasked(Option<Arc<Revision>>),
}

impl Live {
    fn revision(&self) -> Option<&Arc<Revision>> {
        match self {
            Self::Answered { revision, .. } => Some(revision),
            Self::Unasked(revision) => revision.as_ref(),
        }
    }

    /// The verdict that left, or that would have left; neither counted nor logged as a decision.
    async fn verdict(&self, job: &Job) -> Result<Cow<'_, Verdict>, Overloaded> {
        let revision = match self {
            Self::Answered { verdict, .. } => return Ok(Cow::Borrowed(verdict)),
            Self::Unasked(None) => return Ok(Cow::Owned(Verdict::allow())),
            Self::Unasked(Some(revision)) if is_left_out(revision, &job.review).await => {
                return Ok(Cow::Owned(Verdict::allow()));
            }
            Self::Unasked(Some(revision)) => revision,
        };
        match would_be(revision, &job.review, &job.namespaces).await {
            Ok(verdict) => Ok(Cow::Owned(verdict)),
            Err(EvaluationError::Overloaded) => Err(Overloaded),
            Err(error) => Ok(Cow::Owned(Failure::from(&error).verdict().enforce(&revision.enforcement))),
        }
    }
}

/// The way into the preview queue.
#[derive(Clone, Debug)]
pub struct Previews {
    jobs: mpsc::Sender<(Job, OwnedSemaphorePermit)>,
    memory: Arc<Semaphore>,
}

/// Ends when the worker has: when all [`Previews`] are dropped and the queue is empty.
pub type Worker = oneshot::Receiver<()>;

impl Previews {
    /// Starts the worker with a queue of this capacity. It takes at most a quarter of the engines' places, of which
    /// there are `places`: live requests keep theirs.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(capacity: usize, places: u32, priority: PreviewPriority) -> io::Result<(Self, Worker)> {
        let (jobs, receiver) = mpsc::channel(capacity);
        let concurrency = (places / 4).clamp(1, CONCURRENCY);
        let (ended, worker) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new().name("preview".to_owned()).spawn(move || {
            if priority == PreviewPriority::Idle
                && let Err(error) = give_way()
            {
                tracing::warn!(%error, "previews run at normal priority");
            }
            runtime.block_on(work(receiver, concurrency));
            // Nobody waits any more when the server was cut off.
            let _ = ended.send(());
        })?;
        Ok((Self { jobs, memory: Arc::new(Semaphore::new(QUEUE_KIB)) }, worker))
    }

    /// Queues a job, or counts it as dropped when the queue is full. Never waits.
    pub fn offer(&self, job: Job) {
        let experiments = Arc::clone(&job.experiments);
        let kib = u32::try_from(job.review.size() / 1024 + 1).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).try_acquire_many_owned(kib);
        if !memory.is_ok_and(|memory| self.jobs.try_send((job, memory)).is_ok()) {
            for experiment in experiments.iter() {
                experiment.drop_one();
            }
        }
    }
}

/// Lets this thread, and those that it starts (the blocking pool of its runtime), run only when a CPU has nothing else
/// to do. A CPU that is busy with nothing but them counts as idle when a live request looks for one; at nice 19, it would
/// wait for the end of their time slice.
#[cfg(target_os = "linux")]
fn give_way() -> Result<(), thread_priority::Error> {
    use thread_priority::{NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    thread_priority::set_thread_priority_and_policy(thread_priority::thread_native_id(), ThreadPriority::Min, policy)
}

/// Elsewhere threads have no such priority.
#[cfg(not(target_os = "linux"))]
fn give_way() -> Result<(), std::convert::Infallible> {
    Ok(())
}

async fn work(mut receiver: mpsc::Receiver<(Job, OwnedSemaphorePermit)>, concurrency: u32) {
    let places = Arc::new(Semaphore::new(concurrency as usize));
    while let Some((job, _memory)) = receiver.recv().await {
        let job = Arc::new(job);
        let sure = job.experiments.iter().map(|experiment| (experiment, true));
        for (experiment, is_sure) in sure.chain(job.unsure.iter().map(|experiment| (experiment, false))) {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (job, experiment) = (Arc::clone(&job), Arc::clone(experiment));
            tokio::spawn(async move {
                if is_sure {
                    preview(&job, &experiment, would_be(&experiment.revision, &job.review, &job.namespaces)).await;
                } else if is_left_out(&experiment.revision, &job.review).await {
                    preview(&job, &experiment, ready(Ok(Verdict::allow()))).await;
                }
                drop(place);
            });
        }
    }
    // The jobs that were taken from the queue end before the runtime does.
    let _ = places.acquire_many(concurrency).await;
}

/// Compares what one experiment says about one request: one line, one count.
async fn preview(job: &Job, experiment: &Experiment, verdict: impl Future<Output = Result<Verdict, EvaluationError>>) {
    let Ok(live) = job.live.verdict(job).await else { return experiment.drop_one() };
    let start = Instant::now();
    let verdict = match verdict.await {
        // Live requests took all places: that says nothing about the experiment.
        Err(EvaluationError::Overloaded) => return experiment.drop_one(),
        verdict => verdict.map_err(|error| Failure::from(&error)),
    };
    let duration = start.elapsed();
    let verdict = verdict.as_ref();
    let divergence = compare(&live, verdict, &job.review);
    experiment.observe(divergence, &job.review, job.seen, message(divergence, &live, verdict));
    let answered_by = job.live.revision().map(Arc::as_ref);
    write(&Line::new(&job.review, answered_by, &live, experiment, verdict, divergence, duration));
}

/// What the one of the two that denies says: the experiment, unless only the live policy denies.
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

/// The verdict that would leave, were the experiment live.
async fn would_be(
    revision: &Revision,
    review: &Review,
    namespaces: &BTreeMap<String, Labels>,
) -> Result<Verdict, EvaluationError> {
    if exemption(revision, review, namespaces).await?.is_some() {
        return Ok(Verdict::allow());
    }
    Ok(evaluate(revision, review).await?.enforce(&revision.enforcement))
}

/// Whether the API server would not ask the revision, for its `matchConditions`. What they come to no decision about counts
/// as covered, as everywhere.
async fn is_left_out(revision: &Revision, review: &Review) -> bool {
    left_out(revision, review).await.unwrap_or(false)
}

fn compare(live: &Verdict, experiment: Result<&Verdict, &Failure>, review: &Review) -> Divergence {
    let patches = live.patch.is_some() || experiment.is_ok_and(|verdict| verdict.patch.is_some());
    let object = patches.then(|| review.object_json()).flatten();
    let object = object.and_then(|json| proviso_core::review::parse(json).ok());
    Divergence::between(live, experiment, object.as_ref())
}

fn write(line: &Line<'_>) {
    // One write a line, so that lines of several threads do not mix. A closed stdout must not end the server.
    if let Err(error) = io::stdout().lock().write_all(line.to_text().as_bytes()) {
        tracing::debug!(%error, "a preview line could not be written");
    }
}
