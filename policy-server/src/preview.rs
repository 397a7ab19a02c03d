//! Previews (AIP-236): ACTIVE experiments are evaluated on live requests, after the live answer is sent. The queue has a maximum
//! length, and a full queue drops requests instead of delaying them. Policies and namespaces share the queue and the concurrent
//! evaluations, so that no experiment keeps the others from being previewed. By default, the worker runs at the lowest CPU
//! priority, so that previews do not slow down live requests.

mod comparison;
mod counter;
mod drops;
mod evaluation;
mod hypothetical;
mod line;
mod queue;
mod request_line;
mod requests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use proviso_core::sampling::is_sampled;
use proviso_core::{Divergence, Mode, PolicyId, Review, Verdict};
use proviso_crds::PreviewLogging;
use proviso_shares::{Limits, Shares};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::budgets::Overloaded;
use crate::config::PreviewPriority;
use crate::decide::Decision;
use crate::requests::Candidate;
use crate::table::{Experiment, Revision, Table};
use comparison::Comparison;
use counter::Subject;
use drops::DropLog;
use evaluation::Evaluation;
use line::{Line, to_text};
use queue::{Queued, Room, Work, account};

pub use counter::{DivergenceCounter, Observation, Versions, now};
pub use evaluation::Concern;
pub use requests::RequestJob;

/// The maximum number of concurrent evaluations of experiments: two of one policy.
const CONCURRENCY: u32 = 8;
/// The minimum time between two log lines about dropped requests of an experiment.
const DROP_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// The time that the worker has to drop its evaluations when it is aborted. An evaluation yields every millisecond.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A request, and the experiments to evaluate for it.
#[derive(Debug)]
pub struct Job {
    pub live: Live,
    pub experiments: Vec<(Arc<Experiment>, Concern)>,
    /// The policies at the time of the request.
    pub table: Arc<Table>,
    pub review: Review,
    /// The arrival time of the request. Previews do not end in the order of their requests.
    pub arrived_at: Timestamp,
}

/// The live verdict, with which an experiment is compared.
#[derive(Debug)]
pub enum Live {
    /// The decision that answered the request.
    Answered { revision: Arc<Revision>, decision: Decision },
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

    fn is_monitoring(&self) -> bool {
        self.revision().is_some_and(|revision| revision.enforcement().mode == Mode::Monitor)
    }

    /// Returns the verdict that answered the request, or that would have answered it. With `is_protecting`, the mode Protect applies
    /// instead of that of the live revision.
    async fn verdict(&self, job: &Job, is_protecting: bool) -> Result<Cow<'_, Verdict>, Overloaded> {
        match self {
            // The annotation that the policy was not asked is no part of its verdict.
            Self::Answered { decision, .. } if !decision.was_asked => Ok(Cow::Owned(Verdict::allow())),
            Self::Answered { revision, decision } => Ok(match &decision.unenforced {
                Some(verdict) if is_protecting => {
                    Cow::Owned(Verdict::clone(verdict).enforce(&revision.enforcement().protecting()))
                }
                _ => Cow::Borrowed(&decision.verdict),
            }),
            Self::NotAsked(None) => Ok(Cow::Owned(Verdict::allow())),
            Self::NotAsked(Some(revision)) => hypothetical::of_live(revision, job, is_protecting).await.map(Cow::Owned),
        }
    }
}

/// The sender of the preview queue.
#[derive(Clone, Debug)]
pub struct PreviewQueue {
    /// The channel has no limit, because `room` limits its jobs.
    jobs: mpsc::UnboundedSender<Queued>,
    room: Room,
    drops: Arc<DropLog>,
}

/// The thread that evaluates experiments.
#[derive(Debug)]
pub struct Worker {
    /// Resolves when the thread ends: when all [`PreviewQueue`]s are dropped and the queue is empty.
    ended: oneshot::Receiver<()>,
    abort: oneshot::Sender<()>,
}

impl Worker {
    /// Waits until the worker has evaluated the queue, after all [`PreviewQueue`]s are dropped. Returns false if it has not after
    /// `timeout`: then the rest is dropped, and counted as dropped.
    pub async fn end(mut self, timeout: Duration) -> bool {
        if tokio::time::timeout(timeout, &mut self.ended).await.is_ok() {
            return true;
        }
        // An error means that the worker has just ended.
        let _ = self.abort.send(());
        if tokio::time::timeout(ABORT_TIMEOUT, self.ended).await.is_err() {
            tracing::warn!("the previews did not end: some dropped requests are not counted");
        }
        false
    }
}

impl PreviewQueue {
    /// Starts the worker with a queue of this capacity. The worker uses about a quarter of the `places` for concurrent evaluations,
    /// so that live requests find free ones.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(capacity: usize, places: u32, priority: PreviewPriority) -> io::Result<(Self, Worker)> {
        let (jobs, receiver) = mpsc::unbounded_channel();
        // At least two, so that an experiment that loops does not hold all of them.
        let concurrency = (places / 4).clamp(2, CONCURRENCY);
        let ((ending, ended), (abort, aborted)) = (oneshot::channel(), oneshot::channel());
        let drops = Arc::<DropLog>::default();
        let queue = Self { jobs, room: Room::new(capacity), drops: Arc::clone(&drops) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new().name("preview".to_owned()).spawn(move || {
            if priority == PreviewPriority::Idle && !proviso_engines::demote_this_thread() {
                tracing::warn!("cannot lower the CPU priority: previews run at normal priority");
            }
            let work = run_until_aborted(receiver, concurrency, aborted, Arc::clone(&drops));
            runtime.block_on(proviso_tasks::exit_on_panic("previews", work));
            // The running evaluations are dropped with the runtime, and count as dropped. Blocking threads end with the process.
            runtime.shutdown_background();
            write_drops(&drops);
            // The receiver is dropped if the server did not wait for the previews.
            let _ = ending.send(());
        })?;
        Ok((queue, Worker { ended, abort }))
    }

    /// Queues a job, for the experiments whose sample has the request. If the queue is full, the request counts as dropped. Never
    /// waits.
    pub fn offer(&self, mut job: Job) {
        let live_etag = job.live.revision().map(|live| live.etag.as_str());
        let mut evaluations = Vec::new();
        for (experiment, concern) in std::mem::take(&mut job.experiments) {
            if is_sampled(job.review.uid(), experiment.settings.sample_rate) {
                evaluations.extend(Evaluation::begin(experiment, concern, live_etag, &self.drops));
            }
        }
        let size = job.review.size();
        // All experiments are of one policy.
        self.enqueue(&Work::Review(Arc::new(job)), evaluations, size);
    }

    /// Queues a request to a service for these candidates, whose samples have the request. Never waits.
    pub fn offer_request<'a>(&self, job: RequestJob, candidates: impl IntoIterator<Item = &'a Candidate>) {
        let mut by_policy: BTreeMap<&PolicyId, Vec<Evaluation>> = BTreeMap::new();
        for candidate in candidates {
            let Candidate { experiment, live_etag, .. } = candidate;
            let begun = Evaluation::begin(Arc::clone(experiment), Concern::Always, live_etag.as_deref(), &self.drops);
            by_policy.entry(&experiment.revision.policy).or_default().extend(begun);
        }
        let size = job.size();
        let work = Work::Request(Arc::new(job));
        for evaluations in by_policy.into_values() {
            self.enqueue(&work, evaluations, size);
        }
    }

    /// Queues the evaluations of a request for the experiments of one policy. If its share of the queue is full, the evaluations are
    /// dropped here, and count as dropped. `size` is the memory of the request, in bytes.
    fn enqueue(&self, work: &Work, evaluations: Vec<Evaluation>, size: usize) {
        let Some(first) = evaluations.first() else { return };
        if let Some(place) = self.room.take(&first.experiment.revision.policy, size) {
            let _ = self.jobs.send(Queued { work: work.clone(), evaluations, place });
        }
    }

    /// Counts a request that concerns the experiment and is not previewed. `live_etag` is the etag of the live generation; `None` if
    /// no generation is live.
    pub fn count_dropped(&self, experiment: &Arc<Experiment>, live_etag: Option<&str>) {
        // An evaluation that is dropped without a result counts as dropped.
        drop(Evaluation::begin(Arc::clone(experiment), Concern::Always, live_etag, &self.drops));
    }
}

/// Evaluates the queue until it is closed and empty, or until the worker is aborted. Meanwhile, logs how many requests are dropped.
async fn run_until_aborted(
    receiver: mpsc::UnboundedReceiver<Queued>,
    concurrency: u32,
    aborted: oneshot::Receiver<()>,
    drops: Arc<DropLog>,
) {
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(DROP_LOG_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            drops.take().iter().for_each(write);
        }
    });
    tokio::select! {
        () = run_worker(receiver, concurrency) => {}
        // The sender is dropped if the server did not wait for the previews. This does not abort them.
        Ok(()) = aborted => {}
    }
}

async fn run_worker(mut receiver: mpsc::UnboundedReceiver<Queued>, concurrency: u32) {
    let workers = Shares::new(Limits::of(concurrency.into()));
    let mut previews = JoinSet::new();
    loop {
        tokio::select! {
            queued = receiver.recv() => match queued {
                Some(queued) => begin(queued, &workers, &mut previews),
                None => break,
            },
            Some(_) = previews.join_next() => {}
        }
    }
    while previews.join_next().await.is_some() {}
}

/// Begins the evaluations of a request. Each waits until its policy and namespace have fewer evaluations than their shares.
fn begin(Queued { work, evaluations, place }: Queued, workers: &Shares, previews: &mut JoinSet<()>) {
    let place = Arc::new(place);
    for evaluation in evaluations {
        let (work, place) = (work.clone(), Arc::clone(&place));
        let worker = account(workers, &evaluation.experiment.revision.policy);
        previews.spawn(async move {
            let _worker = worker.take(1).await;
            drop(place);
            match work {
                Work::Review(job) => preview(&job, evaluation).await,
                Work::Request(job) => requests::preview(&job, evaluation).await,
            }
        });
    }
}

/// Compares the verdict of an experiment with the live verdict. Counts one divergence and writes one preview line.
async fn preview(job: &Job, mut evaluation: Evaluation) {
    let experiment = Arc::clone(&evaluation.experiment);
    // Two versions that enforce nothing are compared by the verdicts that they would enforce.
    let is_monitored = job.live.is_monitoring() && experiment.revision.enforcement().mode == Mode::Monitor;
    // Live requests hold the places or the memory. This is no failure of the experiment: the evaluation counts as dropped.
    let Ok(place) = experiment.revision.accounts.preview_place().await else { return };
    let start = Instant::now();
    let evaluating = async {
        let answer = hypothetical::of_experiment(&experiment.revision, evaluation.concern, job, is_monitored).await?;
        let duration = start.elapsed();
        let Some(answer) = answer else { return Ok(None) };
        Ok::<_, Overloaded>(Some((answer, job.live.verdict(job, is_monitored).await?, duration)))
    };
    let Ok(evaluated) = place.run(evaluating).await else { return };
    let Some((answer, live, duration)) = evaluated else { return evaluation.cancel() };
    let comparison = Comparison::new(live, answer, &job.review);
    evaluation.finish(&Observation {
        divergence: comparison.divergence,
        has_failed: comparison.failure.is_some(),
        subject: &Subject::from(&job.review),
        arrived_at: job.arrived_at,
        message: comparison.message(&job.review).as_deref(),
    });
    if comparison.divergence != Divergence::Same || experiment.settings.logging == PreviewLogging::All {
        let answered_by = job.live.revision().map(Arc::as_ref);
        write(&Line::new(&job.review, answered_by, &experiment, &comparison, is_monitored, duration));
    }
}

/// Writes the lines about all dropped requests that have none yet.
fn write_drops(drops: &DropLog) {
    loop {
        let lines = drops.take();
        if lines.is_empty() {
            return;
        }
        lines.iter().for_each(write);
    }
}

fn write(line: &impl Serialize) {
    // Each line is one write, so that the lines of several threads do not mix. A closed stdout must not end the server.
    if let Err(error) = io::stdout().lock().write_all(to_text(line).as_bytes()) {
        tracing::debug!(%error, "cannot write a preview line");
    }
}

#[cfg(test)]
mod tests;
