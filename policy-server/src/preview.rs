//! Previews (AIP-236): ACTIVE experiments are evaluated on live traffic after the live answer has left. The queue is
//! bounded and never waits; the workers run at the lowest priority, so that live requests do not feel them.

mod line;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_core::matching::Labels;
use proviso_core::{Divergence, Failure, Review, Verdict};
use proviso_engines::EvaluationError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::decide::{evaluate, exemption};
use crate::table::{Experiment, Revision};

/// The most experiments that are evaluated at the same time.
const CONCURRENCY: u32 = 4;
/// The most memory that queued reviews may take, in KiB: 64 MiB.
const QUEUE_KIB: usize = 64 * 1024;

/// A request that was answered, and the experiments to ask about it.
#[derive(Debug)]
pub struct Job {
    pub live: Arc<Revision>,
    pub experiments: Arc<[Arc<Experiment>]>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    pub review: Review,
    /// As it left.
    pub verdict: Verdict,
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
    pub fn start(capacity: usize, places: u32) -> io::Result<(Self, Worker)> {
        let (jobs, receiver) = mpsc::channel(capacity);
        let concurrency = (places / 4).clamp(1, CONCURRENCY);
        let (ended, worker) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new().name("preview".to_owned()).spawn(move || {
            // On Linux this concerns this thread and those that it starts: the blocking pool of its runtime.
            if cfg!(target_os = "linux")
                && let Err(error) = rustix::process::nice(19)
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
                experiment.metrics.dropped.inc();
            }
        }
    }
}

async fn work(mut receiver: mpsc::Receiver<(Job, OwnedSemaphorePermit)>, concurrency: u32) {
    let places = Arc::new(Semaphore::new(concurrency as usize));
    while let Some((job, _memory)) = receiver.recv().await {
        let job = Arc::new(job);
        for experiment in job.experiments.iter() {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (job, experiment) = (Arc::clone(&job), Arc::clone(experiment));
            tokio::spawn(async move {
                preview(&job, &experiment).await;
                drop(place);
            });
        }
    }
    // The jobs that were taken from the queue end before the runtime does.
    let _ = places.acquire_many(concurrency).await;
}

/// Evaluates one experiment on one request: one line, one count.
async fn preview(job: &Job, experiment: &Experiment) {
    let start = Instant::now();
    let verdict = match would_be(&experiment.revision, &job.review, &job.namespaces).await {
        // Live requests took all places: that says nothing about the experiment.
        Err(EvaluationError::Overloaded) => {
            experiment.metrics.dropped.inc();
            return;
        }
        verdict => verdict.map_err(|error| Failure::from(&error)),
    };
    let duration = start.elapsed();
    let divergence = compare(job, verdict.as_ref());
    experiment.metrics.observe(divergence);
    write(job, experiment, verdict.as_ref(), divergence, duration);
}

/// The verdict that would leave, were the experiment live.
async fn would_be(
    revision: &Revision,
    review: &Review,
    namespaces: &BTreeMap<String, Labels>,
) -> Result<Verdict, EvaluationError> {
    if exemption(revision, review, namespaces).is_some() {
        return Ok(Verdict::allow());
    }
    Ok(evaluate(revision, review).await?.enforce(&revision.enforcement))
}

fn compare(job: &Job, experiment: Result<&Verdict, &Failure>) -> Divergence {
    let patches = job.verdict.patch.is_some() || experiment.is_ok_and(|verdict| verdict.patch.is_some());
    let object = patches.then(|| job.review.object_json()).flatten();
    let object = object.and_then(|json| proviso_core::review::parse(json).ok());
    Divergence::between(&job.verdict, experiment, object.as_ref())
}

fn write(
    job: &Job,
    experiment: &Experiment,
    verdict: Result<&Verdict, &Failure>,
    divergence: Divergence,
    duration: Duration,
) {
    let line = line::Line::new(job, experiment, verdict, divergence, duration).to_text();
    // One write a line, so that lines of several threads do not mix. A closed stdout must not end the server.
    if let Err(error) = io::stdout().lock().write_all(line.as_bytes()) {
        tracing::debug!(%error, "a preview line could not be written");
    }
}
