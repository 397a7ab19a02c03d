//! Requests to services: the chain of request policies decides about them.

mod answer;
#[cfg(feature = "cluster")]
mod callers;
mod http;
mod identity;
mod served;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_core::request::{Chain, ConstraintCache, Decision, Outcome, Progress, Request, RevisionId};
use proviso_core::{Failure, PolicyId};
use proviso_engines::{Deadline, EvaluationError, Program, isolated};

use crate::budgets::Overloaded;
use crate::decide::count_shortage;
use crate::metrics;
use crate::table::{Revision, Table};

#[cfg(feature = "cluster")]
pub use callers::CallerReviews;
#[cfg(feature = "cluster")]
pub use http::reviewed_router;
pub use http::router;
pub use served::ServedRequests;

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

/// Evaluates a request with the live policies of a table, which stays the same until the end.
///
/// # Errors
/// Returns an error if the server has no capacity for the evaluation now, or if a policy that covers the request has no generation
/// that works.
pub async fn evaluate(table: &Table, request: Request, cache: Arc<ConstraintCache>) -> Result<Outcome, Refusal> {
    let covering = table.requests.covering(&request)?;
    let revisions = covering.iter().map(|(policy, revision)| (policy.revision.clone(), revision)).collect();
    let evaluation = Evaluation { revisions, deadline: Instant::now() + TIME_LIMIT };
    let start = Instant::now();
    let mut progress = Chain::start(request, covering.into_iter().map(|(policy, _)| policy.clone()), cache);
    let outcome = loop {
        progress = match progress {
            Progress::Next(chain) => evaluation.step(chain).await?,
            Progress::Done(outcome) => break *outcome,
        }
    };
    log(&outcome, start);
    Ok(outcome)
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

impl Evaluation<'_> {
    /// Evaluates the next policy of a chain, and applies its result.
    async fn step(&self, chain: Box<Chain>) -> Result<Progress, Overloaded> {
        let Some(revision) = self.revisions.get(&chain.policy().revision) else {
            let failure = Failure::new("Internal", "the revision is not in the table");
            return Ok(chain.apply(Err(failure)));
        };
        let is_wasm = matches!(revision.program, Program::Wasm(_) | Program::Group(_));
        let budget = revision.accounts.place(is_wasm, &revision.metrics.places).await?;
        let start = Instant::now();
        let deadline = Deadline::at(self.deadline.min(start + revision.timeout));
        let (result, progress) = budget
            .run(async {
                let result = revision.program.evaluate_request(&chain, deadline).await;
                let result = match result {
                    Err(EvaluationError::Overloaded(shortage)) => return Err(shortage),
                    Err(error) => Err(Failure::from(&error)),
                    Ok(value) => Ok(value),
                };
                let is_failed = result.is_err();
                // The validation of constraints takes CPU time, which belongs to the policy too.
                let applied = isolated(Deadline::after(STEP_TIME_LIMIT), move || Ok(chain.apply(result))).await;
                Ok((is_failed, applied))
            })
            .await
            .map_err(|shortage| count_shortage(revision, shortage))?;
        let progress = progress.map_err(|error| {
            tracing::warn!(policy = %revision.policy, %error, "a step of a chain did not end");
            Overloaded
        })?;
        revision.metrics.observe(outcome_of(&progress, result), Some(start.elapsed()));
        Ok(progress)
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
