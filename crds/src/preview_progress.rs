//! The progress of a start and of a stop of a preview in a cluster, by the status that the operator writes. Pure. The REST API and the
//! command line convert it to their answers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::Reason;

use crate::{
    ConditionStatus, ConditionType, Conditions as _, ExperimentStatus, PreviewMetadata, PreviewState, StopCause,
    reasons,
};

/// The reasons of `Previewing=False` while a preview is active, or is being stopped: replicas may still evaluate the experiment.
const NOT_STOPPED: [&Reason; 6] = [
    &reasons::STOPPING,
    &reasons::PREPARING,
    &reasons::LOADING,
    &reasons::LOADING_FAILED,
    &reasons::NO_REPLICAS,
    &reasons::NOT_INITIALIZED,
];

/// A start or a stop of a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviewChange<'a> {
    /// The `startTime` of the start, or the `stopTime` of the stop.
    pub time: &'a Time,
    /// The `metadata.generation` of the experiment at that time.
    pub generation: i64,
}

/// The progress of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartProgress {
    /// Some replicas have not loaded the candidate. The value is the message of the condition `Previewing`; `None` if the operator has
    /// not reported about the current generation.
    Running(Option<String>),
    /// Every replica has loaded the candidate of this start, or of a later start of the same generation. A later stop, start or update
    /// does not change this.
    Done,
    /// The start has ended before every replica had loaded the candidate.
    Failed(StartFailure),
}

/// The reason why a start has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// The operator has suspended the preview for this cause.
    Suspended(StopCause),
    /// A caller has stopped the preview.
    Stopped,
    /// The experiment was updated.
    Updated,
    /// Another start has replaced this one.
    Replaced,
}

/// The progress of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopProgress {
    /// Some replicas may still evaluate the experiment.
    Running,
    /// No replica evaluates the experiment, and the counts are final.
    Done,
    /// A later start has replaced the stop.
    Restarted,
}

impl StartProgress {
    /// Returns the progress of `start`. `generation` is the current `metadata.generation` of the experiment.
    #[must_use]
    pub fn of(start: PreviewChange<'_>, status: &ExperimentStatus, generation: i64) -> Self {
        let Some(preview) = &status.preview_metadata else { return Self::Failed(StartFailure::Replaced) };
        // All starts since then were of the same generation, because generations only increase.
        let is_same_generation = preview.generation == start.generation;
        let is_loaded = |loaded: &Time| loaded == start.time || (loaded > start.time && is_same_generation);
        if status.previewed_start_time.as_ref().is_some_and(is_loaded) {
            return Self::Done;
        }
        if preview.start_time != *start.time {
            return Self::Failed(StartFailure::Replaced);
        }
        match failure(preview, generation) {
            Some(failure) => Self::Failed(failure),
            None => Self::running(status, generation),
        }
    }

    /// Returns the progress of a start that has not ended, or that the operator has not begun.
    #[must_use]
    pub fn running(status: &ExperimentStatus, generation: i64) -> Self {
        let previewing = status.conditions.condition(ConditionType::Previewing);
        let current = previewing.filter(|condition| condition.observed_generation == Some(generation));
        Self::Running(current.map(|condition| condition.message.clone()))
    }
}

/// Returns the reason why the last start has failed, if it was not loaded; `None` while it is in progress.
fn failure(preview: &PreviewMetadata, generation: i64) -> Option<StartFailure> {
    match (preview.state, &preview.stop_cause) {
        (PreviewState::Active, _) if preview.generation == generation => None,
        // An update of the experiment suspends its preview, even before the operator has written the new state.
        (PreviewState::Active, _) => Some(StartFailure::Updated),
        (PreviewState::Suspended, Some(cause)) => Some(StartFailure::Suspended(cause.clone())),
        (PreviewState::Suspended, None) => Some(StartFailure::Stopped),
    }
}

impl StopProgress {
    /// Returns the progress of `stop`.
    #[must_use]
    pub fn of(stop: PreviewChange<'_>, status: &ExperimentStatus) -> Self {
        let Some(preview) = &status.preview_metadata else { return Self::Done };
        if preview.state == PreviewState::Active || preview.start_time > *stop.time {
            return Self::Restarted;
        }
        let previewing = status.conditions.condition(ConditionType::Previewing);
        let is_stopped = previewing.is_some_and(|condition| {
            condition.status == ConditionStatus::False.as_str()
                && condition.observed_generation >= Some(stop.generation)
                // A condition from before the stop does not count.
                && !NOT_STOPPED.iter().any(|reason| condition.reason == **reason)
        });
        if is_stopped { Self::Done } else { Self::Running }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The time of the start or the stop in the tables.
    const TIME: &str = "2026-11-20T09:14:07Z";
    const EARLIER: &str = "2026-11-20T09:00:00Z";
    const LATER: &str = "2026-11-20T09:30:00Z";

    fn at(text: &str) -> Time {
        serde_json::from_value(json!(text)).unwrap()
    }

    fn read(status: &Value) -> ExperimentStatus {
        serde_json::from_value(status.clone()).unwrap()
    }

    fn previewing(status: &str, reason: &str, generation: i64) -> Value {
        json!([{
            "type": "Previewing", "status": status, "reason": reason, "message": "no", "observedGeneration": generation,
            "lastTransitionTime": EARLIER,
        }])
    }

    fn preview(state: &str, start: &str, generation: i64) -> Value {
        json!({"state": state, "logPrefix": "PolicyPreviewLog", "startTime": start, "generation": generation})
    }

    /// Returns the metadata of a preview that the operator has suspended for this reason.
    fn suspended(reason: &str) -> Value {
        let mut preview = preview("SUSPENDED", TIME, 2);
        preview["stopCause"] = json!({"reason": reason, "message": "why"});
        preview
    }

    /// Returns the progress of a start of generation 2. `generation` is the current one.
    fn start(generation: i64, status: &Value) -> StartProgress {
        StartProgress::of(PreviewChange { time: &at(TIME), generation: 2 }, &read(status), generation)
    }

    fn cause(reason: &str) -> StartFailure {
        StartFailure::Suspended(StopCause { reason: reason.to_owned(), message: "why".to_owned() })
    }

    #[test]
    fn a_start_is_done_when_every_replica_has_loaded_it() {
        use StartFailure::{Replaced, Stopped};
        use StartProgress::{Done, Failed};
        let running = || StartProgress::Running(Some("no".to_owned()));
        for (preview, loaded, wanted) in [
            (preview("ACTIVE", TIME, 2), None, running()),
            // An earlier start was loaded, and the condition `Previewing` may still be from it.
            (preview("ACTIVE", TIME, 2), Some(EARLIER), running()),
            (preview("ACTIVE", TIME, 2), Some(TIME), Done),
            // A later stop, update or start does not undo it.
            (preview("SUSPENDED", TIME, 2), Some(TIME), Done),
            (suspended("Updated"), Some(TIME), Done),
            (preview("ACTIVE", LATER, 3), Some(TIME), Done),
            (preview("ACTIVE", LATER, 2), Some(LATER), Done),
            // The start ended before it was loaded.
            (preview("SUSPENDED", TIME, 2), None, Failed(Stopped)),
            (preview("SUSPENDED", TIME, 2), Some(EARLIER), Failed(Stopped)),
            (suspended("LoadingFailed"), None, Failed(cause("LoadingFailed"))),
            (suspended("NoReplicas"), Some(EARLIER), Failed(cause("NoReplicas"))),
            (preview("ACTIVE", LATER, 2), Some(EARLIER), Failed(Replaced)),
            // Another generation was started and loaded.
            (preview("ACTIVE", LATER, 3), Some(LATER), Failed(Replaced)),
            (Value::Null, None, Failed(Replaced)),
        ] {
            let conditions = previewing("False", "Loading", 2);
            let status = json!({"previewMetadata": preview, "previewedStartTime": loaded, "conditions": conditions});
            assert_eq!(start(2, &status), wanted, "{status}");
        }
    }

    #[test]
    fn the_message_of_a_start_is_about_the_current_generation() {
        for (conditions, message) in [
            (json!([]), None),
            (previewing("False", "Suspended", 1), None),
            (previewing("False", "Preparing", 2), Some("no".to_owned())),
        ] {
            let status = json!({"previewMetadata": preview("ACTIVE", TIME, 2), "conditions": conditions});
            assert_eq!(start(2, &status), StartProgress::Running(message), "{status}");
        }
    }

    #[test]
    fn the_update_of_an_active_experiment_ends_its_start_before_the_operator_has_suspended_it() {
        let mut status = json!({"previewMetadata": preview("ACTIVE", TIME, 2)});
        assert_eq!(start(3, &status), StartProgress::Failed(StartFailure::Updated));
        status["previewedStartTime"] = json!(TIME);
        assert_eq!(start(3, &status), StartProgress::Done);
    }

    #[test]
    fn a_stop_is_done_when_no_replica_evaluates_the_experiment_any_more() {
        use StopProgress::{Done, Restarted, Running};
        let suspended = || {
            let mut preview = preview("SUSPENDED", EARLIER, 2);
            preview["stopTime"] = json!(TIME);
            preview
        };
        for (preview, conditions, wanted) in [
            (suspended(), json!([]), Running),
            (suspended(), previewing("True", "Previewing", 2), Running),
            (suspended(), previewing("False", "Stopping", 2), Running),
            // The condition is from before the stop.
            (suspended(), previewing("False", "Preparing", 2), Running),
            (suspended(), previewing("False", "Loading", 2), Running),
            (suspended(), previewing("False", "LoadingFailed", 2), Running),
            (suspended(), previewing("False", "NoReplicas", 2), Running),
            (suspended(), previewing("False", "NotInitialized", 2), Running),
            (suspended(), previewing("False", "Suspended", 1), Running),
            (suspended(), previewing("False", "Suspended", 2), Done),
            (suspended(), previewing("False", "NotAccepted", 2), Done),
            // The experiment was updated after the stop.
            (suspended(), previewing("False", "Suspended", 3), Done),
            (preview("ACTIVE", LATER, 2), previewing("False", "Loading", 2), Restarted),
            (preview("SUSPENDED", LATER, 2), previewing("False", "Stopping", 2), Restarted),
            // The experiment was never started.
            (Value::Null, json!([]), Done),
        ] {
            let status = json!({"previewMetadata": preview, "conditions": conditions});
            let found = StopProgress::of(PreviewChange { time: &at(TIME), generation: 2 }, &read(&status));
            assert_eq!(found, wanted, "{status}");
        }
    }
}
