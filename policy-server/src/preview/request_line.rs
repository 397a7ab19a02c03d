//! The log line of one previewed request to a service. It has names of fields, and no values of the payload.

use std::time::Duration;

use proviso_core::Divergence;
use proviso_core::request::{OutcomeComparison, OutcomeSummary};
use serde::Serialize;

use super::counter::Subject;
use super::line::LineHead;
use crate::requests::Candidate;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestLine<'a> {
    #[serde(flatten)]
    head: LineHead<'a>,
    request: ServiceRequest<'a>,
    live: &'a OutcomeSummary,
    preview: &'a OutcomeSummary,
    divergence: Divergence,
    differs: Differences<'a>,
    /// The duration of the evaluation of the chain, in microseconds.
    duration_us: u128,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceRequest<'a> {
    uid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_type: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

/// The fields that differ, at most 20 of each list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Differences<'a> {
    /// The fields of the payload.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    payload: &'a [String],
    /// The fields whose constraints differ.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    constraints: &'a [String],
    /// True if the constraints of the service provider differ.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    provider_constraints: bool,
    /// The number of the other fields that differ.
    #[serde(skip_serializing_if = "is_zero")]
    omitted: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl<'a> RequestLine<'a> {
    pub(super) fn new(
        uid: &'a str,
        subject: &'a Subject,
        candidate: &'a Candidate,
        comparison: &'a OutcomeComparison,
        duration: Duration,
    ) -> Self {
        let live = (candidate.live_generation, candidate.live_etag.as_deref());
        let OutcomeComparison { payload, constraints, provider_constraints, .. } = comparison;
        Self {
            head: LineHead::new(live, &candidate.experiment),
            request: ServiceRequest {
                uid,
                service_type: &subject.kind,
                tenant: &subject.namespace,
                user: &subject.user,
                name: &subject.name,
            },
            live: &comparison.live,
            preview: &comparison.experiment,
            divergence: comparison.divergence,
            differs: Differences {
                payload: &payload.fields,
                constraints: &constraints.fields,
                provider_constraints: *provider_constraints,
                omitted: payload.omitted + constraints.omitted,
            },
            duration_us: duration.as_micros(),
        }
    }
}
