//! The log line of one previewed request (AIP-236, "Logging"): a prefix and one JSON object. The line contains the name of the
//! object and the messages, but never the content of the object.

use std::time::Duration;

use proviso_core::experiment::LOG_PREFIX;
use proviso_core::review::{GroupVersionKind, Head, Operation};
use proviso_core::{Divergence, Failure, PolicyId, Review, Verdict};
use serde::Serialize;

use crate::table::{Experiment, Revision};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line<'a> {
    /// The time of the preview in UTC (RFC 3339).
    time: String,
    policy: &'a PolicyId,
    /// The generation of the live revision; `None` if no revision was live.
    #[serde(skip_serializing_if = "Option::is_none")]
    live_generation: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    live_etag: Option<&'a str>,
    experiment: String,
    experiment_etag: &'a str,
    request: Request<'a>,
    live: Side<'a>,
    preview: Side<'a>,
    divergence: Divergence,
    /// The duration of the evaluation of the experiment, in microseconds.
    duration_us: u128,
}

#[derive(Debug, Serialize)]
struct Request<'a> {
    uid: &'a str,
    #[serde(flatten)]
    identity: Option<Identity<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Identity<'a> {
    kind: &'a GroupVersionKind,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    operation: Option<Operation>,
    user: &'a str,
}

/// A verdict without its patch, because the patch contains content of the object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Side<'a> {
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    mutated: bool,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    /// The reason of a failed evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> Line<'a> {
    /// Makes the line. `answered_by` is the revision of the verdict `live`; `None` if no revision is live.
    pub(super) fn new(
        review: &'a Review,
        answered_by: Option<&'a Revision>,
        live: &'a Verdict,
        experiment: &'a Experiment,
        verdict: Result<&'a Verdict, &'a Failure>,
        divergence: Divergence,
        duration: Duration,
    ) -> Self {
        Self {
            time: jiff::Timestamp::now().to_string(),
            policy: &experiment.revision.policy,
            live_generation: answered_by.map(|live| live.generation),
            live_etag: answered_by.map(|live| live.etag.as_str()),
            experiment: experiment.id.to_string(),
            experiment_etag: &experiment.revision.etag,
            request: Request { uid: review.uid(), identity: review.head().map(Identity::from) },
            live: Side::from(live),
            preview: verdict.map_or_else(Side::failed, Side::from),
            divergence,
            duration_us: duration.as_micros(),
        }
    }

    pub(super) fn to_text(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("{LOG_PREFIX} {json}\n")
    }
}

impl<'a> From<&'a Head> for Identity<'a> {
    fn from(head: &'a Head) -> Self {
        Self {
            kind: &head.kind,
            sub_resource: &head.sub_resource,
            namespace: &head.namespace,
            name: &head.name,
            operation: head.operation,
            user: &head.user.username,
        }
    }
}

impl<'a> From<&'a Verdict> for Side<'a> {
    fn from(verdict: &'a Verdict) -> Self {
        Self {
            allowed: verdict.allowed,
            code: verdict.code,
            message: verdict.message.as_deref(),
            mutated: verdict.patch.is_some(),
            warnings: &verdict.warnings,
            error: None,
        }
    }
}

impl<'a> Side<'a> {
    fn failed(failure: &'a Failure) -> Self {
        Self {
            allowed: false,
            code: Some(500),
            message: Some(&failure.message),
            mutated: false,
            warnings: &[],
            error: Some(failure.reason.as_str()),
        }
    }
}
