//! The end of a preview, by the status of its experiment: its time, the reason of a stop, and a version that cannot be prepared. Pure.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use proviso_core::experiment::preview::{Expiry, StopReason};
use proviso_core::{Failure, Reason};

use crate::conditions::outcome;
use crate::{ConditionType, Conditions as _, ExperimentStatus, PreviewMetadata, PreviewState, StopCause, reasons};

/// The reasons of a stop cause that say nothing about the preparation of the version.
const OTHER_STOPS: [Reason; 6] = [
    reasons::UPDATED,
    reasons::EXPIRED,
    reasons::NO_REPLICAS,
    reasons::LOADING_FAILED,
    reasons::POLICY_NOT_FOUND,
    reasons::TOO_MANY,
];

impl PreviewMetadata {
    /// Returns the end of the preview, as it is at `now`; `None` if the preview does not stop by itself. Without a meaning while the
    /// preview is suspended.
    #[must_use]
    pub fn expiry(&self, now: Timestamp) -> Option<Expiry> {
        let end = self.expire_time.as_ref()?.0;
        // A negative duration becomes zero.
        let until_end = |from: Timestamp| Duration::try_from(end.duration_since(from)).unwrap_or_default();
        Some(Expiry { left: until_end(now), ttl: until_end(self.start_time.0) })
    }

    /// Returns the reason why the preview is suspended, as far as it decides about another start by `autoStart`; `None` while it is
    /// active.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        if self.state == PreviewState::Active {
            return None;
        }
        let Some(cause) = &self.stop_cause else { return Some(StopReason::Lasting) };
        let is_one_of = |known: &[Reason]| known.iter().any(|reason| cause.reason == *reason);
        Some(if is_one_of(&[reasons::EXPIRED]) {
            StopReason::Lasting
        } else if is_one_of(&[reasons::UPDATED]) {
            StopReason::Updated
        } else if is_one_of(&[reasons::POLICY_NOT_FOUND, reasons::TOO_MANY]) {
            StopReason::NotAccepted
        } else if is_one_of(&[reasons::NO_REPLICAS]) {
            StopReason::NoReplicas
        } else {
            StopReason::Failed
        })
    }
}

impl ExperimentStatus {
    /// Returns the cause for which the preview of this generation is stopped; `None` if it is not stopped, or if a caller stopped it.
    #[must_use]
    pub fn stop_cause(&self, generation: i64) -> Option<&StopCause> {
        let preview = self.preview_metadata.as_ref().filter(|preview| preview.generation == generation)?;
        preview.stop_cause.as_ref().filter(|_| preview.state == PreviewState::Suspended)
    }

    /// Returns the reason why this generation cannot be prepared; `None` if it was prepared, or this is not known yet.
    #[must_use]
    pub fn preparation_failure(&self, generation: i64) -> Option<Failure> {
        let initialized = self.conditions.condition(ConditionType::Initialized);
        let initialized = initialized.filter(|condition| condition.observed_generation == Some(generation));
        match initialized.and_then(outcome) {
            Some(prepared) => prepared.err(),
            // After a start that failed, nothing is prepared any more, and only the cause of the stop has the failure.
            None => self.failed_preparation(generation),
        }
    }

    /// Returns the failure of the last start, if this generation could not be prepared.
    fn failed_preparation(&self, generation: i64) -> Option<Failure> {
        let StopCause { reason, message } = self.stop_cause(generation)?;
        let is_prepared = OTHER_STOPS.iter().any(|other| *reason == *other);
        (!is_prepared).then(|| Failure::new(reason.clone(), message.clone()))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Time {
        Time(Timestamp::from_second(seconds).unwrap())
    }

    /// Returns the metadata of a preview of generation 2, from second 10 to second 70.
    fn started() -> PreviewMetadata {
        PreviewMetadata::start(None, 2, at(10), Duration::from_mins(1))
    }

    fn stopped(reason: &str) -> PreviewMetadata {
        started().stop(at(20), Some(StopCause::new(reason, "why")))
    }

    #[test]
    fn an_end_has_the_time_that_is_left_and_the_whole_time() {
        for (now, left) in [(10, 60), (69, 1), (70, 0), (100, 0)] {
            let (left, ttl) = (Duration::from_secs(left), Duration::from_mins(1));
            assert_eq!(started().expiry(at(now).0), Some(Expiry { left, ttl }), "{now}");
        }
        let without_end = PreviewMetadata { expire_time: None, ..started() };
        assert_eq!(without_end.expiry(at(100).0), None);
    }

    #[test]
    fn each_cause_of_a_stop_has_a_reason() {
        assert_eq!(started().stop_reason(), None);
        assert_eq!(started().stop(at(20), None).stop_reason(), Some(StopReason::Lasting), "a caller stopped it");
        for (cause, wanted) in [
            ("Expired", StopReason::Lasting),
            ("Updated", StopReason::Updated),
            ("PolicyNotFound", StopReason::NotAccepted),
            ("TooMany", StopReason::NotAccepted),
            ("NoReplicas", StopReason::NoReplicas),
            ("LoadingFailed", StopReason::Failed),
            ("CompileError", StopReason::Failed),
            ("ReasonOfAnotherVersion", StopReason::Failed),
        ] {
            assert_eq!(stopped(cause).stop_reason(), Some(wanted), "{cause}");
        }
    }

    /// Returns the condition `Initialized` of generation 2.
    fn initialized(status: &str, reason: &str) -> Value {
        json!({
            "type": "Initialized", "status": status, "reason": reason, "message": "no", "observedGeneration": 2,
            "lastTransitionTime": "2026-11-20T09:14:07Z",
        })
    }

    #[test]
    fn only_the_condition_or_the_last_start_of_the_same_generation_shows_that_it_cannot_be_prepared() {
        let unknown = || initialized("Unknown", "Suspended");
        for (generation, metadata, condition, wanted) in [
            (2, None, unknown(), None),
            (2, None, initialized("False", "CompileError"), Some("CompileError: no")),
            (3, None, initialized("False", "CompileError"), None),
            (2, Some(stopped("CompileError")), unknown(), Some("CompileError: why")),
            (2, Some(stopped("PullError")), unknown(), Some("PullError: why")),
            (3, Some(stopped("CompileError")), unknown(), None),
            // It was prepared after the stop.
            (2, Some(stopped("CompileError")), initialized("True", "Prepared"), None),
            // It was started again, or a caller stopped it.
            (2, Some(started()), unknown(), None),
            (2, Some(started().stop(at(20), None)), unknown(), None),
            // These causes say nothing about the preparation.
            (2, Some(stopped("Updated")), unknown(), None),
            (2, Some(stopped("Expired")), unknown(), None),
            (2, Some(stopped("NoReplicas")), unknown(), None),
            (2, Some(stopped("LoadingFailed")), unknown(), None),
            (2, Some(stopped("PolicyNotFound")), unknown(), None),
            (2, Some(stopped("TooMany")), unknown(), None),
        ] {
            let status = json!({"previewMetadata": metadata, "conditions": [condition]});
            let status: ExperimentStatus = serde_json::from_value(status).unwrap();
            let found = status.preparation_failure(generation).map(|failure| failure.to_string());
            assert_eq!(found.as_deref(), wanted, "{generation} {status:?}");
        }
    }
}
