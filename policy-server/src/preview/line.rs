//! The log lines of previews (AIP-236, "Logging"): a prefix and one JSON object. The line of a request contains the name of the object
//! and the messages, but never the content of the object.

use std::time::Duration;

use proviso_core::experiment::LOG_PREFIX;
use proviso_core::review::{GroupVersionKind, Head, Operation, REDACTED};
use proviso_core::{Divergence, Failure, PolicyId, Review, Verdict};
use serde::Serialize;

use super::comparison::Comparison;
use crate::table::{Experiment, Revision};

/// The fields that the lines of all previewed requests have.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LineHead<'a> {
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
    /// The share of the requests that are previewed; `None` if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_rate: Option<f64>,
}

/// The line of one previewed request to the Kubernetes API.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line<'a> {
    #[serde(flatten)]
    head: LineHead<'a>,
    request: Request<'a>,
    /// True if both versions are in the mode Monitor. Then the verdicts are those of the mode Protect, and the request passed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    monitored: bool,
    live: Side<'a>,
    preview: Side<'a>,
    divergence: Divergence,
    /// The details that differ, for the divergence `DetailsDiffer`.
    #[serde(skip_serializing_if = "<[&str]>::is_empty")]
    differs: &'a [&'static str],
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
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    mutated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'a str>,
    /// The reason of a failed evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// The line about requests that were not previewed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DropLine {
    /// The time of the line in UTC (RFC 3339).
    time: String,
    policy: PolicyId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_etag: Option<String>,
    pub experiment: String,
    experiment_etag: String,
    /// The number of requests since the last such line about these versions.
    pub dropped: u64,
}

impl<'a> LineHead<'a> {
    /// `live` is the generation and the etag of the live revision, if it is loaded and if it is known.
    pub(super) fn new(live: (Option<u64>, Option<&'a str>), experiment: &'a Experiment) -> Self {
        let sample_rate = experiment.settings.sample_rate;
        Self {
            time: jiff::Timestamp::now().to_string(),
            policy: &experiment.revision.policy,
            live_generation: live.0,
            live_etag: live.1,
            experiment: experiment.id.to_string(),
            experiment_etag: &experiment.revision.etag,
            sample_rate: (sample_rate < 1.0).then_some(sample_rate),
        }
    }
}

impl<'a> Line<'a> {
    /// Makes the line. `answered_by` is the live revision; `None` if no revision is live.
    pub(super) fn new(
        review: &'a Review,
        answered_by: Option<&'a Revision>,
        experiment: &'a Experiment,
        comparison: &'a Comparison<'_>,
        monitored: bool,
        duration: Duration,
    ) -> Self {
        let live = (answered_by.map(|live| live.generation), answered_by.map(|live| live.etag.as_str()));
        Self {
            head: LineHead::new(live, experiment),
            request: Request { uid: review.uid(), identity: review.head().map(Identity::from) },
            monitored,
            live: Side::new(&comparison.live, None, review.is_confidential()),
            preview: Side::new(&comparison.preview, comparison.failure.as_ref(), review.is_confidential()),
            divergence: comparison.divergence,
            differs: &comparison.details,
            duration_us: duration.as_micros(),
        }
    }
}

impl DropLine {
    pub(super) fn new(
        policy: PolicyId,
        experiment: String,
        experiment_etag: String,
        live_etag: Option<String>,
        dropped: u64,
    ) -> Self {
        Self { time: jiff::Timestamp::now().to_string(), policy, live_etag, experiment, experiment_etag, dropped }
    }
}

/// Returns the text of a line.
pub(super) fn to_text(line: &impl Serialize) -> String {
    // Strings, numbers, lists and maps with string keys always serialize.
    let json = serde_json::to_string(line).unwrap_or_default();
    format!("{LOG_PREFIX} {json}\n")
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

impl<'a> Side<'a> {
    /// `failure` is the failure that the verdict answers. The messages about a confidential object are redacted.
    fn new(verdict: &'a Verdict, failure: Option<&'a Failure>, is_confidential: bool) -> Self {
        let redacted = |message| if is_confidential { REDACTED } else { message };
        Self {
            allowed: verdict.allowed,
            code: verdict.code,
            reason: verdict.reason.as_deref().map(redacted),
            // In the mode Monitor, the verdict on a failure has no message.
            message: verdict.message.as_deref().or(failure.map(|failure| failure.message.as_str())).map(redacted),
            mutated: verdict.patch.is_some(),
            warnings: verdict.warnings.iter().map(|warning| redacted(warning.as_str())).collect(),
            error: failure.map(|failure| failure.reason.as_str()),
        }
    }
}
