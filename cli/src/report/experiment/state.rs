//! The state of an experiment: since when, why, and as a sentence.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::{Failure, Reason};
use proviso_crds::conditions::failure;
use proviso_crds::reasons;
use proviso_crds::{Canary, CanaryResult, ConditionStatus, ConditionType, PreviewState, StopCause};

use super::super::divergence;
use crate::objects::ExperimentObject;

/// The reasons of `Previewing=False` that a user must solve. The other reasons are steps of the start.
const BLOCKING_REASONS: [Reason; 2] = [reasons::NO_REPLICAS, reasons::LOADING_FAILED];
/// The reasons of a stop that are no failure: the experiment was changed, or its time to live has passed.
const EXPECTED_STOPS: [Reason; 2] = [reasons::UPDATED, reasons::EXPIRED];

/// Returns the time since when the experiment is in its state. The time of a suspension by an update is unknown until the
/// operator has written it.
pub(super) fn since(experiment: &ExperimentObject) -> Option<Time> {
    let preview = experiment.status.preview_metadata.as_ref()?;
    match (experiment.state()?, preview.state) {
        (PreviewState::Active, _) => Some(preview.start_time.clone()),
        (PreviewState::Suspended, PreviewState::Suspended) => preview.stop_time.clone(),
        (PreviewState::Suspended, PreviewState::Active) => None,
    }
}

/// Returns the problem that a user must solve; `None` if there is none.
pub(super) fn problem(experiment: &ExperimentObject) -> Option<Failure> {
    if let Some(failure) = &experiment.failure {
        return Some(failure.clone());
    }
    let refused = experiment.condition(ConditionType::Accepted);
    let broken =
        experiment.condition(ConditionType::Initialized).filter(|_| experiment.state() == Some(PreviewState::Active));
    let stuck = experiment
        .condition(ConditionType::Previewing)
        .filter(|it| BLOCKING_REASONS.iter().any(|reason| it.reason == *reason));
    let failed = [refused, broken, stuck]
        .into_iter()
        .flatten()
        .find(|condition| condition.status == ConditionStatus::False.as_str());
    failed.map(failure).or_else(|| failed_preview(experiment))
}

/// Returns true if the stop is no failure.
fn is_expected(cause: &StopCause) -> bool {
    EXPECTED_STOPS.iter().any(|reason| cause.reason == *reason)
}

/// Returns the failure for which the operator or the server has stopped the preview.
fn failed_preview(experiment: &ExperimentObject) -> Option<Failure> {
    let StopCause { reason, message } = experiment.stop_cause().filter(|cause| !is_expected(cause))?;
    Some(Failure::new(reason.clone(), message.clone()))
}

/// Returns the state as a sentence.
pub(super) fn summary(experiment: &ExperimentObject, problem: Option<&Failure>) -> String {
    if experiment.is_being_deleted {
        return "it is being deleted".to_owned();
    }
    let (generation, is_in_cluster) = (experiment.generation, experiment.is_in_cluster);
    let started = experiment.status.preview_metadata.as_ref().map(|preview| preview.generation);
    let is_changed = started.is_some_and(|started| started != generation);
    match (experiment.state(), experiment.stop_cause()) {
        (None, _) if experiment.auto_start && problem.is_none() && is_in_cluster => {
            "the operator has not started it yet".to_owned()
        }
        (None, _) => "it was not started, and is not previewed".to_owned(),
        (Some(PreviewState::Suspended), _) if is_changed && experiment.auto_start && problem.is_none() => {
            format!("it was changed after its start: the operator has not started generation {generation} yet")
        }
        (Some(PreviewState::Suspended), _) if is_changed => {
            format!("it was changed after its start: generation {generation} is not previewed")
        }
        (Some(PreviewState::Suspended), Some(cause)) if is_expected(cause) => {
            format!("it is not previewed any more: {}", cause.message)
        }
        (Some(PreviewState::Suspended), Some(_)) => "its preview was stopped, because it cannot run".to_owned(),
        (Some(PreviewState::Suspended), None) if experiment.is_stopping() => {
            "it is being stopped: replicas end the evaluations that wait".to_owned()
        }
        (Some(PreviewState::Suspended), _) if !is_in_cluster => "it is not previewed".to_owned(),
        (Some(PreviewState::Suspended), _) => "it was stopped, and is not previewed".to_owned(),
        (Some(PreviewState::Active), _) if problem.is_some() => {
            "it was started, but its preview has a problem".to_owned()
        }
        (Some(PreviewState::Active), _) if experiment.is_configuration() && experiment.is_observed() => {
            let previewing = experiment.condition(ConditionType::Previewing);
            if is_in_cluster && previewing.is_none_or(|it| it.status != ConditionStatus::True.as_str()) {
                return "it is not previewed yet: the operator validates it".to_owned();
            }
            canaries(&experiment.status.canaries)
        }
        (Some(PreviewState::Active), _) if !is_in_cluster => match &experiment.status.divergence {
            None => "it is previewed; this server has no counts, but its log has a line for each verdict".to_owned(),
            counts => divergence::summary(counts.as_ref()),
        },
        (Some(PreviewState::Active), _) if !experiment.is_observed() => {
            "it was started; the operator has not processed it yet".to_owned()
        }
        (Some(PreviewState::Active), _) => {
            let is_everywhere = experiment.condition(ConditionType::Previewing).is_some_and(|it| it.status == "True");
            let loading = if is_everywhere { "" } else { "not every replica previews it yet; " };
            format!("{loading}{}", divergence::summary(experiment.status.divergence.as_ref()))
        }
    }
}

/// Returns the results of the canaries as a sentence.
fn canaries(canaries: &[Canary]) -> String {
    let count = |result: CanaryResult| canaries.iter().filter(|canary| canary.result == result).count();
    let (delivered, rejected) = (count(CanaryResult::Delivered), count(CanaryResult::Rejected));
    match canaries.len() {
        0 => "it is previewed; no component gets it, because no PolicySubscription names it in canaryFor".to_owned(),
        all if rejected > 0 => format!("{delivered} of {all} canaries have it, and {rejected} rejected it"),
        all => format!("{delivered} of {all} canaries have it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{condition, experiment, previewing};
    use crate::report::ExperimentReport;
    use serde_json::{Value, json};

    fn summary_of(generation: i64, status: &Value) -> String {
        ExperimentReport::new(&experiment(generation, status)).summary
    }

    #[test]
    fn each_state_has_a_summary() {
        let mut stopped = previewing(1);
        stopped["previewMetadata"]["state"] = json!("SUSPENDED");
        let mut unobserved = previewing(1);
        unobserved["previewMetadata"]["startTime"] = json!("2026-11-21T09:59:00Z");
        let mut loading = previewing(1);
        loading["conditions"][2] = condition("Previewing", "False", "Loading", "", 1);
        loading["divergence"]["evaluated"] = json!(0);
        let mut same = previewing(1);
        same["divergence"]["same"] = json!(1200);
        let mut failed = previewing(1);
        failed["conditions"][1] = condition("Initialized", "False", "CompileError", "no", 1);
        for (generation, status, wanted) in [
            (1, Value::Null, "it was not started, and is not previewed"),
            (1, previewing(1), "its verdict differs for 13 of 1200 requests"),
            (1, same, "its verdict is the same for all 1200 requests"),
            (1, loading, "not every replica previews it yet; no request was evaluated yet"),
            (1, unobserved, "it was started; the operator has not processed it yet"),
            (1, failed, "it was started, but its preview has a problem"),
            (1, stopped, "it was stopped, and is not previewed"),
            (2, previewing(1), "it was changed after its start: generation 2 is not previewed"),
        ] {
            assert_eq!(summary_of(generation, &status), wanted);
        }
    }

    #[test]
    fn the_preview_of_a_configuration_policy_counts_its_canaries() {
        let canary = |name: &str, result: &str| json!({"namespace": "team", "name": name, "result": result});
        for (canaries, wanted) in [
            (json!([]), "it is previewed; no component gets it, because no PolicySubscription names it in canaryFor"),
            (json!([canary("a", "Delivered"), canary("b", "Waiting")]), "1 of 2 canaries have it"),
            (json!([canary("a", "Delivered"), canary("b", "Rejected")]), "1 of 2 canaries have it, and 1 rejected it"),
        ] {
            let mut status = previewing(1);
            status["divergence"] = Value::Null;
            status["canaries"] = canaries;
            let mut experiment = experiment(1, &status);
            experiment.spec = json!({"configuration": {"configName": "memory", "content": {}}});
            assert_eq!(ExperimentReport::new(&experiment).summary, wanted);
        }
    }

    /// Returns the status of a preview that is stopped, with this cause; null if a caller stopped it.
    fn suspended(cause: &Value, reason: &str) -> Value {
        let mut status = previewing(1);
        status["previewMetadata"]["state"] = json!("SUSPENDED");
        status["previewMetadata"]["stopTime"] = json!("2026-11-21T09:58:00Z");
        status["previewMetadata"]["stopCause"] = cause.clone();
        status["conditions"][2] = condition("Previewing", "False", reason, "", 1);
        status
    }

    #[test]
    fn each_cause_of_a_stop_has_a_summary() {
        let cause = |reason: &str| json!({"reason": reason, "message": "because"});
        for (generation, cause, reason, wanted, problem) in [
            (1, Value::Null, "Suspended", "it was stopped, and is not previewed", None),
            (1, Value::Null, "Stopping", "it is being stopped: replicas end the evaluations that wait", None),
            (1, cause("Expired"), "Suspended", "it is not previewed any more: because", None),
            (1, cause("Expired"), "Stopping", "it is not previewed any more: because", None),
            (
                1,
                cause("LoadingFailed"),
                "Suspended",
                "its preview was stopped, because it cannot run",
                Some("LoadingFailed: because"),
            ),
            (2, cause("Updated"), "Suspended", "it was changed after its start: generation 2 is not previewed", None),
            // The failure was that of another version.
            (
                2,
                cause("CompileError"),
                "Suspended",
                "it was changed after its start: generation 2 is not previewed",
                None,
            ),
        ] {
            let report = ExperimentReport::new(&experiment(generation, &suspended(&cause, reason)));
            let found = report.problem.map(|problem| problem.to_string());
            assert_eq!((report.summary.as_str(), found.as_deref()), (wanted, problem), "{cause} {reason}");
        }
    }

    #[test]
    fn an_experiment_that_starts_by_itself_says_when_it_does_not() {
        let summary = |generation: i64, status: &Value| {
            let mut experiment = experiment(generation, status);
            experiment.auto_start = true;
            ExperimentReport::new(&experiment).summary
        };
        assert_eq!(summary(1, &Value::Null), "the operator has not started it yet");
        let stopped = suspended(&Value::Null, "Suspended");
        assert_eq!(summary(1, &stopped), "it was stopped, and is not previewed");
        let wanted = "it was changed after its start: the operator has not started generation 2 yet";
        assert_eq!(summary(2, &stopped), wanted);
    }

    #[test]
    fn a_step_of_the_start_is_not_a_problem() {
        let with = |index: usize, condition: Value| {
            let mut status = previewing(1);
            status["conditions"][index] = condition;
            ExperimentReport::new(&experiment(1, &status)).problem.map(|problem| problem.reason)
        };
        for (index, name, status, reason, is_problem) in [
            (0, "Accepted", "False", "TooMany", true),
            (1, "Initialized", "False", "CompileError", true),
            (1, "Initialized", "Unknown", "Preparing", false),
            (2, "Previewing", "False", "Loading", false),
            (2, "Previewing", "False", "NoReplicas", true),
        ] {
            let wanted = is_problem.then(|| Reason::new(reason));
            assert_eq!(with(index, condition(name, status, reason, "", 1)), wanted, "{name} {reason}");
            assert_eq!(with(index, condition(name, status, reason, "", 0)), None, "it is about an earlier version");
        }
    }
}
