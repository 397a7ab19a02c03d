//! The classification of the difference between two outcomes, as counts and log lines of experiments have it. Only names of fields, and no
//! values of the payload: logs and statuses must not have the secrets of a request.

use serde::Serialize;

use super::divergence::{FieldList, RequestDivergence};
use super::outcome::{Decision, Outcome};
use super::path::shorten;
use crate::divergence::Divergence;
use crate::failure::Failure;
use crate::policy_id::PolicyId;

/// The outcome of a chain with a candidate in the place of the live policy, in comparison with the live outcome of the same request.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeComparison {
    pub divergence: Divergence,
    /// The failure that ended the chain of the experiment; `None` if it did not fail, or if the live chain failed in the same way and the
    /// candidate is not the policy that failed.
    pub failure: Option<Failure>,
    pub live: OutcomeSummary,
    pub experiment: OutcomeSummary,
    /// The fields of the payload that differ. Empty unless both outcomes allow the request.
    pub payload: FieldList,
    /// The fields whose constraints differ. Empty unless both outcomes allow the request.
    pub constraints: FieldList,
    /// True if the constraints of the service provider differ. False unless both outcomes allow the request.
    pub provider_constraints: bool,
}

/// An outcome without the values of the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeSummary {
    pub status: &'static str,
    /// The reason why the request is not allowed: see [`Decision::message_without_values`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The service provider, if the request is allowed and a policy chose one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl FieldList {
    fn to_text(&self) -> String {
        let more = if self.omitted == 0 { String::new() } else { format!(" and {} more", self.omitted) };
        self.fields.join(", ") + &more
    }
}

impl OutcomeSummary {
    fn new(outcome: &Outcome) -> Self {
        let decision = &outcome.decision;
        let error = match decision {
            Decision::Failed { failure, .. } => Some(failure.reason.as_str().to_owned()),
            _ => None,
        };
        Self {
            status: decision.status(),
            message: decision.message_without_values(),
            provider: outcome.provider.clone().filter(|_| decision.is_allowed()),
            error,
        }
    }
}

impl OutcomeComparison {
    /// Compares the outcome of an experiment of `policy` with the live outcome of the same request. Both chains have the same policies,
    /// except for `policy`.
    #[must_use]
    pub fn new(live: &Outcome, experiment: &Outcome, policy: &PolicyId) -> Self {
        let details = RequestDivergence::between(live, experiment);
        let failure = match &experiment.decision {
            // Another policy fails with and without the candidate: this is no difference.
            Decision::Failed { policy: failed, .. } if failed.policy != *policy && details.is_same() => None,
            Decision::Failed { failure, .. } => Some(failure.clone()),
            _ => None,
        };
        Self {
            divergence: classify(live, experiment, &details, failure.is_some()),
            failure,
            live: OutcomeSummary::new(live),
            experiment: OutcomeSummary::new(experiment),
            payload: details.payload,
            constraints: FieldList::new(details.constraints.into_iter().map(|it| shorten(&it.field))),
            provider_constraints: details.provider_constraints.is_some(),
        }
    }

    /// Returns the difference for people; `None` if there is none.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        if self.divergence == Divergence::Same {
            return None;
        }
        let mut parts = Vec::new();
        if self.live.status != self.experiment.status {
            parts.push(format!("status {} → {}", self.live.status, self.experiment.status));
        }
        if self.live.provider != self.experiment.provider && !self.is_refused() {
            let name = |provider: &Option<String>| provider.clone().unwrap_or_else(|| "none".to_owned());
            parts.push(format!("provider {} → {}", name(&self.live.provider), name(&self.experiment.provider)));
        }
        if !self.payload.is_empty() {
            parts.push(format!("payload: {}", self.payload.to_text()));
        }
        if !self.constraints.is_empty() {
            parts.push(format!("constraints: {}", self.constraints.to_text()));
        }
        if self.provider_constraints {
            parts.push("constraints of the service provider".to_owned());
        }
        let message = match self.divergence {
            Divergence::NewlyAllowed => &self.live.message,
            _ => &self.experiment.message,
        };
        parts.extend(message.clone());
        Some(parts.join("; "))
    }

    fn is_refused(&self) -> bool {
        self.live.message.is_some() || self.experiment.message.is_some()
    }
}

/// Returns the class of a difference. The payload and the service provider decide which service is created, so a difference of one of
/// them is a difference of the mutation. Constraints alone have no effect on the service.
fn classify(live: &Outcome, experiment: &Outcome, details: &RequestDivergence, has_failed: bool) -> Divergence {
    match (live.decision.is_allowed(), experiment.decision.is_allowed()) {
        (true, false) => Divergence::NewlyDenied,
        (false, false) if has_failed => Divergence::ExperimentError,
        (false, true) => Divergence::NewlyAllowed,
        _ if details.is_same() => Divergence::Same,
        (false, false) => Divergence::MessageDiffers,
        (true, true) if details.status.is_some() || !details.payload.is_empty() || details.provider.is_some() => {
            Divergence::MutationDiffers
        }
        (true, true) => Divergence::DetailsDiffer,
    }
}
