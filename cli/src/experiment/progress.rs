//! The progress of a start and of a stop in a cluster, from the experiment that the operator reports about. Pure.

use proviso_core::Failure;
use proviso_crds::{PreviewChange, StartFailure, StartProgress, StopProgress};

use crate::objects::ExperimentObject;
use crate::report::ExperimentReport;

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
    /// The preview was started again before the replicas had loaded or stopped it.
    Restarted,
    /// The experiment no longer exists.
    Gone,
}

/// Returns the progress of `start`. `uid` is that of the experiment.
#[must_use]
pub fn of_start(uid: &str, start: PreviewChange<'_>, now: Option<&ExperimentObject>) -> Progress {
    let Some(experiment) = now.filter(|experiment| experiment.uid == uid) else { return Progress::Gone };
    match StartProgress::of(start, &experiment.status, experiment.generation) {
        StartProgress::Running(message) => Progress::Waiting(waits_for(experiment, message)),
        StartProgress::Done => Progress::Done,
        StartProgress::Failed(StartFailure::Suspended(cause)) => {
            Progress::Failed(Failure::new(cause.reason, cause.message))
        }
        StartProgress::Failed(StartFailure::Stopped | StartFailure::Updated) => Progress::Stopped,
        StartProgress::Failed(StartFailure::Replaced) => Progress::Restarted,
    }
}

/// Returns the progress of `stop`. `uid` is that of the experiment.
#[must_use]
pub fn of_stop(uid: &str, stop: PreviewChange<'_>, now: Option<&ExperimentObject>) -> Progress {
    let Some(experiment) = now.filter(|experiment| experiment.uid == uid) else { return Progress::Gone };
    match StopProgress::of(stop, &experiment.status) {
        StopProgress::Running => Progress::Waiting("replicas end the evaluations that wait".to_owned()),
        StopProgress::Done => Progress::Done,
        StopProgress::Restarted => Progress::Restarted,
    }
}

/// Returns the reason why an active preview is not loaded by every replica. `message` is that of the condition `Previewing`.
fn waits_for(experiment: &ExperimentObject, message: Option<String>) -> String {
    if let Some(problem) = ExperimentReport::new(experiment).problem {
        return problem.to_string();
    }
    let Some(message) = message.filter(|_| experiment.is_observed()) else {
        return "the operator has not processed it yet".to_owned();
    };
    let replicas = experiment.status.replicas.as_ref();
    let replicas = replicas.map_or_else(String::new, |it| format!(" ({} replicas)", it.summary));
    format!("{message}{replicas}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{condition, experiment, previewing};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
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

    /// Returns the progress of a start of generation 1.
    fn start_at(uid: &str, now: Option<&ExperimentObject>) -> Progress {
        of_start(uid, PreviewChange { time: &time(START), generation: 1 }, now)
    }

    /// Returns the progress of a stop of generation 1.
    fn stop_at(uid: &str, now: Option<&ExperimentObject>) -> Progress {
        of_stop(uid, PreviewChange { time: &time(STOP), generation: 1 }, now)
    }

    #[test]
    fn each_result_of_a_start_is_shown() {
        let start_of = |generation: i64, status: &Value| start_at("x", Some(&experiment(generation, status)));
        assert_eq!(start_of(1, &previewing(1)), Progress::Done);
        assert_eq!(start_of(2, &previewing(1)), Progress::Done, "the experiment was changed afterwards");
        let cause = json!({"reason": "LoadingFailed", "message": "server-0: no memory"});
        let failure = Failure::new("LoadingFailed", "server-0: no memory");
        assert_eq!(start_of(1, &stopped(loading(), &cause)), Progress::Failed(failure));
        assert_eq!(start_of(1, &stopped(loading(), &Value::Null)), Progress::Stopped);
        assert_eq!(start_of(2, &loading()), Progress::Stopped, "the experiment was changed");
        let mut later = previewing(2);
        later["previewMetadata"]["startTime"] = json!("2026-11-21T10:30:00Z");
        later["previewedStartTime"] = json!("2026-11-21T10:30:00Z");
        assert_eq!(start_of(2, &later), Progress::Restarted, "the later start is of another generation");
        assert_eq!(start_at("another", Some(&experiment(1, &previewing(1)))), Progress::Gone);
        assert_eq!(start_at("x", None), Progress::Gone);
    }

    #[test]
    fn a_start_in_progress_says_what_it_waits_for() {
        let waiting = |status: &Value| start_at("x", Some(&experiment(1, status)));
        let mut unobserved = loading();
        unobserved["divergence"] = Value::Null;
        // The operator waits before it undoes a start: the problem may be transient.
        let mut failing = loading();
        failing["conditions"][2] = condition("Previewing", "False", "NoReplicas", "no replica is Ready", 1);
        for (status, wanted) in [
            (loading(), "not every Ready replica has loaded it (1/2 replicas)"),
            (unobserved, "the operator has not processed it yet"),
            (failing, "NoReplicas: no replica is Ready"),
        ] {
            assert_eq!(waiting(&status), Progress::Waiting(wanted.to_owned()), "{status}");
        }
    }

    #[test]
    fn each_result_of_a_stop_is_shown() {
        let stop_of = |reason: &str| {
            let mut stopped = stopped(previewing(1), &Value::Null);
            stopped["conditions"][2] = condition("Previewing", "False", reason, "", 1);
            stop_at("x", Some(&experiment(1, &stopped)))
        };
        assert_eq!(stop_of("Suspended"), Progress::Done);
        // The operator has not processed the stop of a start that other replicas have loaded.
        for reason in ["Stopping", "LoadingFailed", "NoReplicas"] {
            assert!(matches!(stop_of(reason), Progress::Waiting(_)), "{reason}");
        }
        let mut restarted = previewing(1);
        restarted["previewMetadata"]["startTime"] = json!("2026-11-21T09:59:00Z");
        assert_eq!(stop_at("x", Some(&experiment(1, &restarted))), Progress::Restarted);
        assert_eq!(stop_at("x", None), Progress::Gone);
    }
}
