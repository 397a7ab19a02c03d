//! Requests to services: the chain of request policies decides about them. After the answer, the chain is previewed with the candidates of
//! experiments.

mod answer;
#[cfg(feature = "cluster")]
mod callers;
mod http;
mod identity;
mod served;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use proviso_core::request::{Chain, ConstraintCache, Decision, Outcome, Progress, Request, RevisionId};
use proviso_core::sampling::is_sampled;
use proviso_core::{Failure, PolicyId};
use proviso_engines::{Deadline, EvaluationError, Program, Shortage, isolated};
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
pub use served::{Candidate, ServedRequests};

/// The time limit of a request: all evaluations of its chain together.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The time limit of one step of a chain besides the evaluation of its policy. A step takes at most about a second.
const STEP_TIME_LIMIT: Duration = Duration::from_secs(5);

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

/// The evaluation of a chain.
struct Evaluation<'a> {
    /// The revisions of the policies that cover the request.
    revisions: HashMap<RevisionId, &'a Arc<Revision>>,
    deadline: Instant,
}

/// Evaluates a request with the live policies of a table, which stays the same until the end. Then queues the previews of the experiments
/// that the request concerns. `previews` is `None` for a request that must not be previewed, such as a dry run, or an evaluation that is a
/// preview itself.
///
/// # Errors
/// Returns an error if the server has no capacity for the evaluation now, or if a policy that covers the request has no generation
/// that works.
pub async fn evaluate(
    table: &Table,
    request: Request,
    cache: Arc<ConstraintCache>,
    previews: Option<&PreviewQueue>,
) -> Result<Outcome, Refusal> {
    let arrived_at = Timestamp::now();
    let covering = table.requests.covering(&request)?;
    let evaluation = Evaluation::new(covering.iter().copied());
    let start = Instant::now();
    let sampled = previews.and_then(|previews| Some((previews, Sampled::new(&table.requests, &request)?)));
    let mut progress =
        Chain::start(request, covering.into_iter().map(|(policy, _)| policy.clone()), Arc::clone(&cache));
    let outcome = loop {
        progress = match progress {
            Progress::Next(chain) => evaluation.step(chain).await?,
            Progress::Done(outcome) => break *outcome,
        }
    };
    log(&outcome, start);
    if let Some((previews, Sampled { uid, request, candidates })) = sampled {
        let (live, policies) = (outcome.clone(), Arc::clone(&table.requests));
        previews.offer_request(RequestJob { uid, request, live, policies, cache, arrived_at }, candidates);
    }
    Ok(outcome)
}

/// Evaluates a request with these policies for a preview, within a place of the preview. Nothing is logged or counted as an evaluation.
///
/// # Errors
/// Returns [`Overloaded`] if this server cannot evaluate the request now.
pub async fn evaluate_candidate(
    policies: &[PlacedRevision],
    request: Request,
    cache: Arc<ConstraintCache>,
) -> Result<Outcome, Overloaded> {
    let evaluation = Evaluation::new(policies);
    let mut progress = Chain::start(request, policies.iter().map(|(policy, _)| policy.clone()), cache);
    loop {
        progress = match progress {
            Progress::Next(chain) => match evaluation.revision(&chain) {
                Some(revision) => match evaluation.apply_next(revision, chain).await {
                    Ok((_, Ok(progress))) => progress,
                    Ok((_, Err(_))) | Err(_) => return Err(Overloaded),
                },
                None => chain.apply(Err(not_in_table())),
            },
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

fn not_in_table() -> Failure {
    Failure::new("Internal", "the revision is not in the table")
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
            tracing::info!(%policy, status, field, policies, duration_us, "request to a service denied");
        }
        Decision::Conflict(conflict) => {
            let field = conflict.field.as_ref().map(ToString::to_string);
            let (policy, other) = (&conflict.policy, &conflict.other);
            tracing::info!(%policy, %other, status, field, policies, duration_us, "request to a service denied");
        }
        Decision::Failed { policy, failure } => {
            let reason = failure.reason.as_str();
            tracing::warn!(%policy, status, reason, policies, duration_us, "evaluation of a request to a service failed");
        }
    }
}

impl<'a> Evaluation<'a> {
    fn new(policies: impl IntoIterator<Item = &'a PlacedRevision>) -> Self {
        let revisions = policies.into_iter().map(|(policy, revision)| (policy.revision.clone(), revision)).collect();
        Self { revisions, deadline: Instant::now() + TIME_LIMIT }
    }

    /// Returns the revision of the next policy of a chain.
    fn revision(&self, chain: &Chain) -> Option<&'a Arc<Revision>> {
        self.revisions.get(&chain.policy().revision).copied()
    }

    /// Evaluates the next policy of a chain, and applies its result.
    async fn step(&self, chain: Box<Chain>) -> Result<Progress, Overloaded> {
        let Some(revision) = self.revision(&chain) else { return Ok(chain.apply(Err(not_in_table()))) };
        let is_wasm = matches!(revision.program, Program::Wasm(_) | Program::Group(_));
        let budget = revision.accounts.place(is_wasm, &revision.metrics.places).await?;
        let start = Instant::now();
        let (result, progress) = budget
            .run(self.apply_next(revision, chain))
            .await
            .map_err(|shortage| count_shortage(revision, shortage))?;
        let progress = progress.map_err(|error| {
            tracing::warn!(policy = %revision.policy, %error, "a step of a chain did not end");
            Overloaded
        })?;
        revision.metrics.observe(outcome_of(&progress, result), Some(start.elapsed()));
        Ok(progress)
    }

    /// Evaluates the next policy of a chain, and applies its result, within the budget of the caller. Returns true if the evaluation
    /// failed, and the progress, or an error if the result was not applied in time.
    async fn apply_next(
        &self,
        revision: &Revision,
        chain: Box<Chain>,
    ) -> Result<(bool, Result<Progress, EvaluationError>), Shortage> {
        let deadline = Deadline::at(self.deadline.min(Instant::now() + revision.timeout));
        let result = match revision.program.evaluate_request(&chain, deadline).await {
            Err(EvaluationError::Overloaded(shortage)) => return Err(shortage),
            Err(error) => Err(Failure::from(&error)),
            Ok(value) => Ok(value),
        };
        let is_failed = result.is_err();
        // The validation of constraints takes CPU time, which belongs to the policy too.
        let applied = isolated(Deadline::after(STEP_TIME_LIMIT), move || Ok(chain.apply(result))).await;
        Ok((is_failed, applied))
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
