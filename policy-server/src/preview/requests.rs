//! Previews of request policies: the whole chain of a request is evaluated again, with the candidate in the place of the live policy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use proviso_core::Divergence;
use proviso_core::request::{ConstraintCache, Outcome, OutcomeComparison, Request};
use proviso_crds::PreviewLogging;
use proviso_engines::{Deadline, isolated};

use super::counter::{Observation, Subject};
use super::evaluation::Evaluation;
use super::request_line::RequestLine;
use super::write;
use crate::budgets::Overloaded;
use crate::requests::{Candidate, ServedRequests, evaluate_candidate};

/// The time limit of the comparison of two outcomes. It takes milliseconds.
const COMPARISON_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A request to a service that was answered, and the policies to evaluate it with again.
#[derive(Debug)]
pub struct RequestJob {
    /// A random id, which the log lines about the request share.
    pub uid: String,
    pub request: Request,
    /// The outcome that answered the request.
    pub live: Outcome,
    /// The policies that answered the request, and the candidates.
    pub policies: Arc<ServedRequests>,
    pub cache: Arc<ConstraintCache>,
    /// The arrival time of the request.
    pub arrived_at: Timestamp,
}

impl RequestJob {
    /// Returns the memory of the job while it is queued, in bytes.
    pub(super) fn size(&self) -> usize {
        self.request.size() + self.live.size()
    }

    /// Evaluates the chain with the candidate, and compares the outcomes. `None` if the server has no capacity now: the evaluation then
    /// counts as dropped.
    async fn evaluate(self: &Arc<Self>, candidate: &Candidate) -> Option<(OutcomeComparison, Duration)> {
        // Live requests hold the places. This is no failure of the experiment.
        let place = candidate.experiment.revision.accounts.preview_place().await.ok()?;
        let start = Instant::now();
        let evaluating = async {
            let chain = self.policies.with_candidate(&self.request, candidate);
            let outcome = evaluate_candidate(&chain, self.request.clone(), Arc::clone(&self.cache)).await?;
            let duration = start.elapsed();
            let (job, policy) = (Arc::clone(self), candidate.experiment.revision.policy.clone());
            let compare = move || Ok(OutcomeComparison::new(&job.live, &outcome, &policy));
            let compared = isolated(Deadline::after(COMPARISON_TIME_LIMIT), compare).await;
            Ok::<_, Overloaded>((compared.map_err(|_| Overloaded)?, duration))
        };
        place.run(evaluating).await.ok()
    }

    /// Returns the names that a sample has. The service type takes the place of the kind, and the tenant that of the namespace.
    fn subject(&self) -> Subject {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let request = &self.request;
        Subject {
            kind: text(request.service_type()),
            namespace: text(request.tenant()),
            user: text(request.user()),
            name: text(request.payload()["metadata"]["name"].as_str()),
        }
    }
}

/// Evaluates the chain with the candidate of an experiment. Counts one divergence and writes one preview line.
pub(super) async fn preview(job: &Arc<RequestJob>, mut evaluation: Evaluation) {
    let experiment = Arc::clone(&evaluation.experiment);
    let Some(candidate) = job.policies.candidate(&experiment) else { return evaluation.cancel() };
    let Some((comparison, duration)) = job.evaluate(candidate).await else { return };
    let subject = job.subject();
    evaluation.finish(&Observation {
        divergence: comparison.divergence,
        has_failed: comparison.failure.is_some(),
        subject: &subject,
        arrived_at: job.arrived_at,
        message: comparison.message().as_deref(),
    });
    if comparison.divergence != Divergence::Same || experiment.settings.logging == PreviewLogging::All {
        write(&RequestLine::new(&job.uid, &subject, candidate, &comparison, duration));
    }
}
