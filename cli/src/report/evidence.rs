//! Warnings about the evidence of a preview: its counts and samples.

use proviso_crds::DivergenceCounts;
use serde::Serialize;

use super::divergence::{requests, share};

const OTHER_VERSION: &str = "OtherVersion";
const OTHER_LIVE_VERSION: &str = "OtherLiveVersion";

/// A reason why the evidence of a preview says less about a commit than it seems to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvidenceWarning {
    /// One word in CamelCase, for programs.
    pub reason: &'static str,
    /// The details, for people.
    pub message: String,
}

impl EvidenceWarning {
    /// Returns true if the evidence is not about the current versions of the experiment and the policy.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        [OTHER_VERSION, OTHER_LIVE_VERSION].contains(&self.reason)
    }
}

/// The versions that the evidence should be about, and the share of the requests that are previewed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    /// The etag of the experiment.
    pub etag: &'a str,
    /// The id of the policy.
    pub policy: &'a str,
    /// The etag of the policy; `None` if it is unknown, or no version is live.
    pub live_etag: Option<&'a str>,
    /// The share of the requests that are previewed; `None` if the server does not know sampling.
    pub sample_rate: Option<f64>,
}

/// Returns the warnings about the counts of a preview.
pub(super) fn warnings(counts: &DivergenceCounts, expected: Expected<'_>) -> Vec<EvidenceWarning> {
    let mut warnings = Vec::new();
    let mut warn = |reason, message| warnings.push(EvidenceWarning { reason, message });
    // Policy servers of an older version report no etags.
    if let Some(counted) = counts.etag.as_deref().filter(|counted| *counted != expected.etag) {
        let message =
            format!("the counts are of the version {counted} of the experiment, which is {} now", expected.etag);
        warn(OTHER_VERSION, message);
    }
    if let (Some(current), true) = (expected.live_etag, counts.etag.is_some())
        && counts.live_etag.as_deref() != Some(current)
    {
        let counted = counts.live_etag.as_deref().map_or_else(
            || "no version was live when they were counted".to_owned(),
            |counted| format!("they compare with {counted}"),
        );
        let message = format!("the counts are not about the version {current} of {}: {counted}", expected.policy);
        warn(OTHER_LIVE_VERSION, message);
    }
    if let Some(rate) = expected.sample_rate.filter(|rate| *rate < 1.0) {
        warn("Sampled", format!("the experiment previews {} of the requests: spec.sampleRate", share(rate)));
    }
    if counts.dropped > 0 {
        let were = if counts.dropped == 1 { "was" } else { "were" };
        let message = format!("{} {were} not evaluated, because too many were waiting", requests(counts.dropped));
        warn("Dropped", message);
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const EXPECTED: Expected<'static> =
        Expected { etag: "\"e\"", policy: "ns.team.labels", live_etag: Some("\"l\""), sample_rate: Some(1.0) };

    fn counts(etags: &Value, dropped: u64) -> DivergenceCounts {
        let mut counts = json!({
            "evaluated": 9, "same": 9, "newlyDenied": 0, "newlyAllowed": 0, "mutationDiffers": 0, "messageDiffers": 0,
            "errors": 0, "dropped": dropped, "since": "2026-11-21T09:48:00Z",
        });
        counts.as_object_mut().unwrap().extend(etags.as_object().unwrap().clone());
        serde_json::from_value(counts).unwrap()
    }

    fn reasons(etags: &Value, dropped: u64, expected: Expected<'_>) -> Vec<&'static str> {
        warnings(&counts(etags, dropped), expected).into_iter().map(|warning| warning.reason).collect()
    }

    #[test]
    fn evidence_about_other_versions_has_a_warning() {
        for (etags, wanted) in [
            (json!({"etag": "\"e\"", "liveEtag": "\"l\""}), vec![]),
            (json!({"etag": "\"e\"", "liveEtag": "\"old\""}), vec!["OtherLiveVersion"]),
            // No version was live.
            (json!({"etag": "\"e\""}), vec!["OtherLiveVersion"]),
            (json!({"etag": "\"old\"", "liveEtag": "\"l\""}), vec!["OtherVersion"]),
            // A policy server of an older version reports no etags.
            (json!({}), vec![]),
        ] {
            assert_eq!(reasons(&etags, 0, EXPECTED), wanted, "{etags}");
        }
        let unknown = Expected { live_etag: None, ..EXPECTED };
        assert_eq!(reasons(&json!({"etag": "\"e\"", "liveEtag": "\"old\""}), 0, unknown), Vec::<&str>::new());
    }

    #[test]
    fn partial_evidence_has_a_warning() {
        let etags = json!({"etag": "\"e\"", "liveEtag": "\"l\""});
        let sampled = Expected { sample_rate: Some(0.1), ..EXPECTED };
        let messages: Vec<_> = warnings(&counts(&etags, 6), sampled).into_iter().map(|it| it.message).collect();
        let wanted = [
            "the experiment previews 10% of the requests: spec.sampleRate",
            "6 requests were not evaluated, because too many were waiting",
        ];
        assert_eq!(messages, wanted);
    }
}
