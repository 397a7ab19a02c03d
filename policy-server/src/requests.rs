//! Requests to services: the chain of request policies decides about them.

mod answer;
mod http;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_core::Failure;
use proviso_core::request::{
    Chain, ConstraintCache, Criteria, Decision, Outcome, Progress, Request, RequestPolicy, RevisionId,
};
use proviso_crds::TENANT;
use proviso_engines::{Deadline, EvaluationError, Program, isolated};

use crate::budgets::Overloaded;
use crate::decide::count_shortage;
use crate::metrics;
use crate::table::{RequestPoint, Revision, Table};

pub use http::router;

/// The time limit of a request: all evaluations of its chain together.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The time limit of one step of a chain besides the evaluation of its policy. A step takes at most about a second.
const STEP_TIME_LIMIT: Duration = Duration::from_secs(5);

/// The outcome of a request, or the reason why it was not evaluated.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("overloaded: too many evaluations at the same time")]
    Overloaded,
    /// A policy that may cover the request has no generation that works.
    #[error("policy {policy} has no generation that works: {why}")]
    Unserved { policy: String, why: String },
}

impl From<Overloaded> for Refusal {
    fn from(_: Overloaded) -> Self {
        Self::Overloaded
    }
}

/// The evaluation of a chain with the live policies of a table.
struct Evaluation<'a> {
    table: &'a Table,
    revisions: HashMap<RevisionId, &'a Arc<Revision>>,
    deadline: Instant,
}

/// Evaluates a request with the live policies of a table, which stays the same until the end.
///
/// # Errors
/// Returns an error if the server has no capacity for the evaluation now, or if a policy that covers the request has no generation
/// that works.
pub async fn evaluate(table: &Table, request: Request, cache: Arc<ConstraintCache>) -> Result<Outcome, Refusal> {
    let mut evaluation = Evaluation { table, revisions: HashMap::new(), deadline: Instant::now() + TIME_LIMIT };
    let mut policies = Vec::new();
    for (id, entry) in &table.policies {
        match (&entry.live, &entry.unserved_request) {
            (Some(live), _) => {
                let Some(point) = live.request().filter(|_| live.enabled) else { continue };
                let policy = evaluation.policy(live, point);
                evaluation.revisions.insert(policy.revision.clone(), live);
                policies.push(policy);
            }
            (None, Some((point, why))) if evaluation.criteria(id.namespace(), point).cover(&request) => {
                return Err(Refusal::Unserved { policy: id.to_string(), why: why.clone() });
            }
            (None, _) => {}
        }
    }
    let mut progress = Chain::start(request, policies, cache);
    loop {
        progress = match progress {
            Progress::Next(chain) => evaluation.step(chain).await?,
            Progress::Done(outcome) => return Ok(*outcome),
        }
    }
}

impl Evaluation<'_> {
    fn policy(&self, revision: &Revision, point: &RequestPoint) -> RequestPolicy {
        RequestPolicy {
            revision: RevisionId {
                policy: revision.policy.clone(),
                generation: revision.generation.try_into().unwrap_or(i64::MAX),
            },
            level: point.level,
            priority: point.priority,
            criteria: self.criteria(revision.policy.namespace(), point),
        }
    }

    /// Returns the criteria of a policy in a namespace: the tenant of the namespace is one of them.
    fn criteria(&self, namespace: Option<&str>, point: &RequestPoint) -> Criteria {
        let tenant = namespace.map(|namespace| {
            let labels = self.table.namespaces.get(namespace);
            labels.and_then(|labels| labels.get(TENANT)).cloned().unwrap_or_else(|| namespace.to_owned())
        });
        Criteria { tenant, ..point.criteria.clone() }
    }

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
