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
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::decide::{evaluate, exemption};
use crate::table::{Experiment, Revision};

/// Experiments evaluated at the same time: few, so that live requests keep their places in the engines' pools.
const CONCURRENCY: usize = 4;

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
pub struct Previews(mpsc::Sender<Job>);

/// Ends when the worker has: when all [`Previews`] are dropped and the queue is empty.
pub type Worker = oneshot::Receiver<()>;

impl Previews {
    /// Starts the worker with a queue of this capacity.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(capacity: usize) -> io::Result<(Self, Worker)> {
        let (sender, receiver) = mpsc::channel(capacity);
        let (ended, worker) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new().name("preview".to_owned()).spawn(move || {
            // On Linux this concerns this thread and those that it starts: the blocking pool of its runtime.
            if cfg!(target_os = "linux")
                && let Err(error) = rustix::process::nice(19)
            {
                tracing::warn!(%error, "previews run at normal priority");
            }
            runtime.block_on(work(receiver));
            // Nobody waits any more when the server was cut off.
            let _ = ended.send(());
        })?;
        Ok((Self(sender), worker))
    }

    /// Queues a job, or counts it as dropped when the queue is full. Never waits.
    pub fn offer(&self, job: Job) {
        if let Err(TrySendError::Full(job) | TrySendError::Closed(job)) = self.0.try_send(job) {
            for experiment in job.experiments.iter() {
                experiment.metrics.dropped.inc();
            }
        }
    }
}

async fn work(mut receiver: mpsc::Receiver<Job>) {
    let places = Arc::new(Semaphore::new(CONCURRENCY));
    while let Some(job) = receiver.recv().await {
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
    let _ = places.acquire_many(u32::try_from(CONCURRENCY).unwrap_or(u32::MAX)).await;
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
