//! Requests to services: the chain of request policies decides about them. After the answer, the chain is previewed with the candidates of
//! experiments.

mod answer;
#[cfg(feature = "cluster")]
mod callers;
mod http;
mod identity;
mod objects;
mod served;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use proviso_core::request::{Chain, ConstraintCache, Decision, Outcome, Progress, Request, RevisionId};
use proviso_core::sampling::is_sampled;
use proviso_core::{Failure, PolicyId};
use proviso_engines::{Deadline, EvaluationError, Shortage, isolated};
use uuid::Uuid;

use crate::budgets::Overloaded;
use crate::decide::count_shortage;
use crate::metrics;
use crate::preview::{PreviewQueue, RequestJob};
use crate::table::{Revision, Table};
use served::PlacedRevision;

#[cfg(feature = "cluster")]
pub use callers::CallerReviews;
#[cfg(feature = "cluster")]
pub use http::reviewed_router;
pub use http::router;
pub use objects::evaluate_object;
pub use served::{Candidate, ServedRequests};

/// The time limit of a request to the HTTP routes, and of the preview of a chain: all evaluations together.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The minimum time for one step of a chain besides the evaluation of its policy: a step at the deadline of the chain has it too. A step
/// takes at most about a second of CPU time.
const MIN_STEP_TIME: Duration = Duration::from_secs(5);

/// The reason why a request was not evaluated.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("overloaded: too many evaluations at the same time")]
    Overloaded,
    /// A policy that covers the request has no generation that works.
    #[error("policy {policy} has no generation that works: {why}")]
    Unserved { policy: PolicyId, why: String },
    /// The live generation of a policy that covers the request is not loaded here. Another replica may have loaded it.
    #[error("generation {generation} of policy {policy} is live, and not loaded on this replica: {why}")]
    NotLoaded { policy: PolicyId, generation: u64, why: String },
}

impl From<Overloaded> for Refusal {
    fn from(_: Overloaded) -> Self {
        Self::Overloaded
    }
}

/// The purpose of an evaluation.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// The answer to a caller. Each policy takes a place of its own share. Metrics and the log have the decision.
    Answer {
        /// The queue of the previews of experiments. `None` for a request that must not be previewed, such as a dry run.
        previews: Option<&'a PreviewQueue>,
    },
    /// A preview, within the budget of the caller. Nothing is counted or logged as a decision.
    Preview,
}

/// The evaluation of a chain.
struct Evaluation<'a> {
    /// The revisions of the policies that cover the request.
    revisions: HashMap<RevisionId, &'a Arc<Revision>>,
    deadline: Instant,
    purpose: Purpose<'a>,
}

/// Evaluates a request with the live policies of a table, which stays the same until the end. The policy that is evaluated at the deadline
/// fails. After an answer, the previews of the experiments that the request concerns are queued.
///
/// # Errors
/// Returns an error if the server has no capacity for the evaluation now, or if a policy that covers the request cannot answer.
pub async fn evaluate(
    table: &Table,
    request: Request,
    cache: Arc<ConstraintCache>,
    deadline: Instant,
    purpose: Purpose<'_>,
) -> Result<Outcome, Refusal> {
    let arrived_at = Timestamp::now();
    let covering = table.requests.covering(&request)?;
    let start = Instant::now();
    let (previews, is_answer) = match purpose {
        Purpose::Answer { previews } => (previews, true),
        Purpose::Preview => (None, false),
    };
    let sampled = previews.and_then(|previews| Some((previews, Sampled::new(&table.requests, &request)?)));
    let outcome = evaluate_chain(covering, request, Arc::clone(&cache), deadline, purpose).await?;
    if is_answer {
        log(&outcome, start);
    }
    if let Some((previews, Sampled { uid, request, candidates })) = sampled {
        let (live, policies) = (outcome.clone(), Arc::clone(&table.requests));
        previews.offer_request(RequestJob { uid, request, live, policies, cache, arrived_at }, candidates);
    }
    Ok(outcome)
}

/// Evaluates a request with these policies for a preview, within a place of the preview.
///
/// # Errors
/// Returns [`Overloaded`] if this server cannot evaluate the request now.
pub async fn evaluate_candidate(
    policies: &[PlacedRevision],
    request: Request,
    cache: Arc<ConstraintCache>,
) -> Result<Outcome, Overloaded> {
    let deadline = Instant::now() + TIME_LIMIT;
    evaluate_chain(policies.iter().collect(), request, cache, deadline, Purpose::Preview).await
}

async fn evaluate_chain(
    policies: Vec<&PlacedRevision>,
    request: Request,
    cache: Arc<ConstraintCache>,
    deadline: Instant,
    purpose: Purpose<'_>,
) -> Result<Outcome, Overloaded> {
    let revisions = policies.iter().map(|(policy, revision)| (policy.revision.clone(), revision)).collect();
    let evaluation = Evaluation { revisions, deadline, purpose };
    let mut progress = Chain::start(request, policies.into_iter().map(|(policy, _)| policy.clone()), cache);
    loop {
        progress = match progress {
            Progress::Next(chain) => evaluation.step(chain).await?,
            Progress::Done(outcome) => return Ok(*outcome),
        }
    }
}

/// A request that experiments preview, before its evaluation begins.
struct Sampled<'a> {
    /// A random id.
    uid: String,
    request: Request,
    candidates: Vec<&'a Candidate>,
}

impl<'a> Sampled<'a> {
    /// Returns `None` if the request concerns no experiment, or is in the sample of none.
    fn new(policies: &'a ServedRequests, request: &Request) -> Option<Self> {
        let mut concerned = policies.concerned(request).peekable();
        concerned.peek()?;
        let uid = Uuid::new_v4().to_string();
        let is_in_sample = |candidate: &&Candidate| is_sampled(&uid, candidate.experiment.settings.sample_rate);
        let candidates: Vec<_> = concerned.filter(is_in_sample).collect();
        (!candidates.is_empty()).then(|| Self { request: request.clone(), candidates, uid })
    }
}

/// Logs a decision. The payload may have secrets, so the line has the policy and the field, but no value.
fn log(outcome: &Outcome, start: Instant) {
    let (status, policies) = (outcome.decision.status(), outcome.trail.len());
    let duration_us = start.elapsed().as_micros();
    match &outcome.decision {
        Decision::Approved | Decision::Modified => {
            tracing::debug!(status, policies, duration_us, "request to a service allowed");
        }
        Decision::Rejected { policy, field, .. } => {
            let field = field.as_ref().map(ToString::to_string);
            let (policy, generation) = (&policy.policy, policy.generation);
            tracing::info!(%policy, generation, status, field, policies, duration_us, "request to a service denied");
        }
        Decision::Conflict(conflict) => {
            let field = conflict.field.as_ref().map(ToString::to_string);
            let (policy, generation, other) =
                (&conflict.policy.policy, conflict.policy.generation, &conflict.other.policy);
            tracing::info!(%policy, generation, %other, status, field, policies, duration_us, "request to a service denied");
        }
        Decision::Failed { policy, failure } => {
            let (policy, generation, reason) = (&policy.policy, policy.generation, failure.reason.as_str());
            tracing::warn!(
                %policy, generation, status, reason, policies, duration_us, "evaluation of a request to a service failed"
            );
        }
    }
}

impl Evaluation<'_> {
    /// Evaluates the next policy of a chain, and applies its result.
    async fn step(&self, chain: Box<Chain>) -> Result<Progress, Overloaded> {
        let Some(revision) = self.revisions.get(&chain.policy().revision) else {
            let failure = Failure::new("Internal", "the revision is not in the table");
            return Ok(chain.apply(Err(failure)));
        };
        if matches!(self.purpose, Purpose::Preview) {
            return self.apply(revision, chain).await.map(|(progress, _)| progress).map_err(|_| Overloaded);
        }
        let budget = revision.accounts.place(revision.program.may_use_wasm(), &revision.metrics.places).await?;
        let start = Instant::now();
        let applied = budget.run(self.apply(revision, chain)).await;
        let (progress, is_failed) = applied.map_err(|shortage| match shortage {
            Some(shortage) => count_shortage(revision, shortage),
            None => Overloaded,
        })?;
        revision.metrics.observe(outcome_of(&progress, is_failed), Some(start.elapsed()));
        Ok(progress)
    }

    /// Evaluates a revision for a chain, and applies its result. Returns the next step, and true if the evaluation failed.
    ///
    /// # Errors
    /// Returns the resource that the evaluation did not get; `None` if the result was not applied in time.
    async fn apply(&self, revision: &Revision, chain: Box<Chain>) -> Result<(Progress, bool), Option<Shortage>> {
        let deadline = Deadline::at(self.deadline.min(Instant::now() + revision.timeout));
        let result = match revision.program.evaluate_request(&chain, deadline).await {
            Err(EvaluationError::Overloaded(shortage)) => return Err(Some(shortage)),
            Err(error) => Err(Failure::from(&error)),
            Ok(value) => Ok(value),
        };
        let is_failed = result.is_err();
        // The validation of constraints takes CPU time, which belongs to the policy too. A slow policy gets the CPU time that others leave.
        let deadline = Deadline::at(self.deadline.max(Instant::now() + MIN_STEP_TIME));
        let applied = isolated(deadline, move || Ok(chain.apply(result))).await;
        match applied {
            Ok(progress) => Ok((progress, is_failed)),
            Err(error) => {
                tracing::warn!(policy = %revision.policy, %error, "a step of a chain did not end");
                Err(None)
            }
        }
    }
}

/// Returns the outcome of a policy for its metrics, after its result was applied.
fn outcome_of(progress: &Progress, is_failed: bool) -> metrics::Outcome {
    let trail = match progress {
        _ if is_failed => return metrics::Outcome::Failed,
        Progress::Next(chain) => chain.trail(),
        Progress::Done(outcome) => match &outcome.decision {
            Decision::Failed { .. } => return metrics::Outcome::Failed,
            Decision::Rejected { .. } | Decision::Conflict(_) => return metrics::Outcome::Denied,
            Decision::Approved | Decision::Modified => &outcome.trail,
        },
    };
    if trail.last().is_some_and(|entry| !entry.patched.is_empty()) {
        metrics::Outcome::Mutated
    } else {
        metrics::Outcome::Allowed
    }
}
