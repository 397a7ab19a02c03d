//! The answers about requests to services, and their errors (RFC 7807).

use axum::http::StatusCode;
use proviso_core::request::{Decision, Outcome, TrailEntry};
use proviso_rest_api::{Code, Error, Problem};
use serde_json::{Value, json};

/// Returns the problem of an evaluation that failed.
pub(super) fn internal(detail: &str) -> Problem {
    Problem::from(&Error::new(Code::Internal, "EVALUATION", detail))
}

/// Returns the problem for a decision that does not allow the request. The APIs have different statuses for a rejection.
pub(super) fn denial(decision: &Decision, rejection: StatusCode) -> Problem {
    let detail = decision.message().unwrap_or_default();
    match decision {
        Decision::Rejected { .. } => Problem::new("REJECTED", rejection, "Request rejected", detail),
        Decision::Conflict(_) => Problem::new("POLICY_CONFLICT", StatusCode::CONFLICT, "Policy Conflict Error", detail),
        Decision::Failed { .. } | Decision::Approved | Decision::Modified => internal(&detail),
    }
}

/// Returns the problem with the trail of the policies that were evaluated. Only in the API of the ADR.
pub(super) fn with_trail(problem: Problem, trail: &[TrailEntry]) -> Problem {
    problem.with_extension("trail", json!(trail))
}

/// Returns the answer about a request that is allowed, as the ADR has it: the final payload, the service provider, and the trail.
pub(super) fn adr(outcome: &Outcome) -> Value {
    json!({
        "status": outcome.decision.status(),
        "payload": outcome.payload,
        "serviceProvider": {"value": outcome.provider, "constraints": outcome.provider_constraints},
        "constraints": outcome.constraints,
        "trail": outcome.trail,
    })
}

/// Returns the answer about a request that is allowed, as the published API has it.
pub(super) fn published(outcome: &Outcome) -> Value {
    json!({
        "evaluated_service_instance": {"spec": outcome.payload},
        "selected_provider": outcome.provider.as_deref().unwrap_or_default(),
        "status": outcome.decision.status(),
    })
}
