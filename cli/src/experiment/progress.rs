//! Computes the progress of a start and of a stop in a cluster, from the experiment that the operator reports about. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::{Failure, Reason};
use proviso_crds::{ConditionStatus, ConditionType, PreviewState, reasons};

use crate::objects::ExperimentObject;
use crate::report::ExperimentReport;

/// The reasons of `Previewing=False` while a start or a stop is in progress: they do not end a stop.
const IN_PROGRESS: [Reason; 3] = [reasons::STOPPING, reasons::PREPARING, reasons::LOADING];

/// The progress of a start or a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The replicas have not reported yet; with the reason.
    Waiting(String),
    /// The replicas have done it.
    Done,
    /// The start failed, and the operator has undone it.
    Failed(Failure),
    /// The preview was stopped, or the experiment was changed, before every replica had loaded it.
    Stopped,
    /// The preview was started again before the replicas had stopped.
    Restarted,
    /// The experiment no longer exists.
    Gone,
}

/// Returns the progress of the start at `start`, the start time in the status. `uid` is that of the experiment.
#[must_use]
pub fn of_start(uid: &str, start: &Time, now: Option<&ExperimentObject>) -> Progress {
    let Some(experiment) = now.filter(|experiment| experiment.uid == uid) else { return Progress::Gone };
    // A later stop or start does not undo that every replica has loaded this start.
    if experiment.status.previewed_start_time.as_ref().is_some_and(|loaded| loaded >= start) {
        return Progress::Done;
    }
    let cause = experiment.status.preview_metadata.as_ref().and_then(|preview| preview.stop_cause.as_ref());
    match (experiment.state(), cause) {
        (Some(PreviewState::Active), _) => Progress::Waiting(waits_for(experiment)),
        (_, Some(cause)) => Progress::Failed(Failure::new(cause.reason.clone(), cause.message.clone())),
        (_, None) => Progress::Stopped,
    }
}

/// Returns the progress of the stop at `stop`, the stop time in the status. `uid` is that of the experiment.
#[must_use]
pub fn of_stop(uid: &str, stop: &Time, now: Option<&ExperimentObject>) -> Progress {
    let Some(experiment) = now.filter(|experiment| experiment.uid == uid) else { return Progress::Gone };
    let preview = experiment.status.preview_metadata.as_ref();
    if preview.is_some_and(|preview| preview.state == PreviewState::Active && preview.start_time > *stop) {
        return Progress::Restarted;
    }
    let is_false = ConditionStatus::False.as_str();
    match experiment.condition(ConditionType::Previewing) {
        Some(condition) if condition.status == is_false && IN_PROGRESS.iter().all(|it| condition.reason != *it) => {
            Progress::Done
        }
        _ => Progress::Waiting("replicas end the evaluations that wait".to_owned()),
    }
}

/// Returns the reason why an active preview is not loaded by every replica.
fn waits_for(experiment: &ExperimentObject) -> String {
    if let Some(problem) = ExperimentReport::new(experiment).problem {
        return problem.to_string();
    }
    let Some(condition) = experiment.condition(ConditionType::Previewing).filter(|_| experiment.is_observed()) else {
        return "the operator has not processed it yet".to_owned();
    };
    let replicas = experiment.status.replicas.as_ref();
    let replicas = replicas.map_or_else(String::new, |it| format!(" ({} replicas)", it.summary));
    format!("{}{replicas}", condition.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{condition, experiment, previewing};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    const START: &str = "2026-11-21T09:48:00Z";
    const STOP: &str = "2026-11-21T09:58:00Z";

    fn time(text: &str) -> Time {
        Time(text.parse::<Timestamp>().unwrap())
    }

    /// Returns the status of a preview that replicas load.
    fn loading() -> Value {
        let mut status = previewing(1);
        status["previewedStartTime"] = json!("2026-11-20T00:00:00Z");
        status["conditions"][2] =
            condition("Previewing", "False", "Loading", "not every Ready replica has loaded it", 1);
        status["replicas"] = json!({"ready": 1, "total": 2, "summary": "1/2"});
        status
    }

    /// Returns the status with the preview stopped for this cause; null if a caller stopped it.
    fn stopped(mut status: Value, cause: &Value) -> Value {
        status["previewMetadata"]["state"] = json!("SUSPENDED");
        status["previewMetadata"]["stopTime"] = json!(STOP);
        status["previewMetadata"]["stopCause"] = cause.clone();
        status
    }

    fn start_at(generation: i64, status: &Value) -> Progress {
        of_start("x", &time(START), Some(&experiment(generation, status)))
    }

    #[test]
    fn a_start_is_done_when_every_replica_has_loaded_it_and_stays_done() {
        assert_eq!(start_at(1, &previewing(1)), Progress::Done);
        assert_eq!(start_at(1, &stopped(previewing(1), &Value::Null)), Progress::Done, "it was stopped afterwards");
        assert_eq!(start_at(2, &previewing(1)), Progress::Done, "the experiment was changed afterwards");
        let mut later = previewing(1);
        later["previewedStartTime"] = json!("2026-11-21T10:30:00Z");
        assert_eq!(start_at(1, &later), Progress::Done, "it was started again afterwards");
        let wanted = "not every Ready replica has loaded it (1/2 replicas)";
        assert_eq!(start_at(1, &loading()), Progress::Waiting(wanted.to_owned()));
        let mut unobserved = loading();
        unobserved["divergence"] = Value::Null;
        let wanted = "the operator has not processed it yet";
        assert_eq!(start_at(1, &unobserved), Progress::Waiting(wanted.to_owned()));
    }

    #[test]
    fn a_start_that_the_operator_has_undone_has_its_cause() {
        let cause = json!({"reason": "LoadingFailed", "message": "server-0: no memory"});
        let failure = Failure::new("LoadingFailed", "server-0: no memory");
        assert_eq!(start_at(1, &stopped(loading(), &cause)), Progress::Failed(failure));
        // The operator waits before it undoes a start: the problem may be transient.
        let mut failing = loading();
        failing["conditions"][2] = condition("Previewing", "False", "NoReplicas", "no replica is Ready", 1);
        assert_eq!(start_at(1, &failing), Progress::Waiting("NoReplicas: no replica is Ready".to_owned()));
    }

    #[test]
    fn a_stop_or_a_change_before_the_start_was_loaded_ends_the_wait() {
        assert_eq!(start_at(1, &stopped(loading(), &Value::Null)), Progress::Stopped);
        assert_eq!(start_at(2, &loading()), Progress::Stopped);
        assert_eq!(of_start("another", &time(START), Some(&experiment(1, &loading()))), Progress::Gone);
        assert_eq!(of_start("x", &time(START), None), Progress::Gone);
    }

    #[test]
    fn a_stop_is_done_when_replicas_have_stopped() {
        let at = |reason: &str, status: &str, generation: i64| {
            let mut stopped = stopped(previewing(1), &Value::Null);
            stopped["conditions"][2] = condition("Previewing", status, reason, "", generation);
            of_stop("x", &time(STOP), Some(&experiment(1, &stopped)))
        };
        for (reason, status, generation, is_done) in [
            ("Previewing", "True", 1, false),
            ("Stopping", "False", 1, false),
            // The operator has not processed the stop of a start that was in progress.
            ("Loading", "False", 1, false),
            ("Suspended", "False", 0, false),
            ("Suspended", "False", 1, true),
            ("NotAccepted", "False", 1, true),
        ] {
            let found = at(reason, status, generation);
            assert_eq!(found == Progress::Done, is_done, "{reason}: {found:?}");
            assert!(is_done || matches!(found, Progress::Waiting(_)), "{reason}: {found:?}");
        }
        let mut restarted = previewing(1);
        restarted["previewMetadata"]["startTime"] = json!("2026-11-21T09:59:00Z");
        assert_eq!(of_stop("x", &time(STOP), Some(&experiment(1, &restarted))), Progress::Restarted);
        assert_eq!(of_stop("x", &time(STOP), None), Progress::Gone);
    }
}
