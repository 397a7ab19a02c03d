//! The answers about requests to services, and their errors (RFC 7807).

use axum::http::StatusCode;
use proviso_core::request::{Decision, Outcome, TrailEntry};
use serde::Serialize;
use serde_json::{Value, json};

/// An error in the form of RFC 7807, with the types of the published API of the DCM project.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    title: &'static str,
    detail: String,
    /// The value of the header `Retry-After`, in seconds; `None` if the same request would fail again.
    #[serde(skip)]
    retry_after: Option<u64>,
    /// The trail of the policies that were evaluated. Only in the API of the ADR.
    #[serde(skip_serializing_if = "Option::is_none")]
    trail: Option<Vec<TrailEntry>>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    fn new(kind: &'static str, status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self { kind, status, title, detail: detail.into(), retry_after: None, trail: None }
    }

    /// Returns the error for a request that is not valid. `detail` names the field.
    pub(super) fn invalid(detail: &str) -> Self {
        Self::new("INVALID_ARGUMENT", StatusCode::BAD_REQUEST, "Invalid request", detail)
    }

    /// Returns the error of a server that cannot evaluate the request now.
    pub(super) fn unavailable(detail: &str) -> Self {
        let problem = Self::new("UNAVAILABLE", StatusCode::SERVICE_UNAVAILABLE, "Try again", detail);
        Self { retry_after: Some(1), ..problem }
    }

    /// Returns the error for a caller that is not authenticated.
    pub(super) fn unauthenticated(detail: &str) -> Self {
        Self::new("UNAUTHENTICATED", StatusCode::UNAUTHORIZED, "Unknown caller", detail)
    }

    /// Returns the error for a caller without a permission.
    pub(super) fn forbidden(detail: &str) -> Self {
        Self::new("PERMISSION_DENIED", StatusCode::FORBIDDEN, "Permission denied", detail)
    }

    /// Returns the error for a caller that may try again after this time, in seconds.
    pub(super) fn too_many(detail: &str, retry_after: u64) -> Self {
        let problem = Self::new("RESOURCE_EXHAUSTED", StatusCode::TOO_MANY_REQUESTS, "Too many requests", detail);
        Self { retry_after: Some(retry_after), ..problem }
    }

    pub(super) fn internal(detail: &str) -> Self {
        Self::new("INTERNAL", StatusCode::INTERNAL_SERVER_ERROR, "Policy evaluation failed", detail)
    }

    /// Returns the error for a decision that does not allow the request. The APIs have different statuses for a rejection.
    pub(super) fn of(decision: &Decision, rejection: StatusCode) -> Self {
        let detail = decision.message().unwrap_or_default();
        match decision {
            Decision::Rejected { .. } => Self::new("REJECTED", rejection, "Request rejected", detail),
            Decision::Conflict(_) => {
                Self::new("POLICY_CONFLICT", StatusCode::CONFLICT, "Policy Conflict Error", detail)
            }
            Decision::Failed { .. } | Decision::Approved | Decision::Modified => Self::internal(&detail),
        }
    }

    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(super) fn with_trail(self, trail: &[TrailEntry]) -> Self {
        Self { trail: Some(trail.to_vec()), ..self }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the value of the header `Retry-After`, in seconds; `None` if the same request would fail again.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    pub(super) fn to_body(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
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
