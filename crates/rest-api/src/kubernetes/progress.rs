//! The progress of an operation, as a pure function of the object and of the status that the operator writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use proviso_core::{Failure, Reason};
use proviso_crds::{
    ConditionStatus, ConditionType, Conditions as _, ExperimentStatus, PreviewMetadata, PreviewState, StopCause,
    reasons,
};

use super::object;
use crate::error::{Code, Error};
use crate::operation::{AwaitedEffect, Effect, Progress};
use crate::store::{State, StoredExperiment};

/// The reasons of the condition `Previewing` while the preview is active, or is being stopped.
const NOT_STOPPED: [&Reason; 6] = [
    &reasons::STOPPING,
    &reasons::PREPARING,
    &reasons::LOADING,
    &reasons::LOADING_FAILED,
    &reasons::NO_REPLICAS,
    &reasons::NOT_INITIALIZED,
];

/// Returns the progress of an operation. `object` is the object that now has the name of the operation's target; `None`
/// means that there is no such object.
pub(super) fn compute(awaited: &AwaitedEffect, object: Option<&DynamicObject>) -> Result<Progress, Error> {
    let object = object.filter(|object| object.uid().as_deref() == Some(&awaited.uid));
    let object = match (object, awaited.effect) {
        (None, Effect::Delete) => return Ok(Progress::Done),
        (None, _) => return Ok(Progress::Failed(Error::not_found(&awaited.target()))),
        (Some(_), Effect::Delete) => return Ok(Progress::Running("the deletion of the object to finish".to_owned())),
        (Some(object), _) => object,
    };
    let version: i64 = awaited.version.parse().unwrap_or_default();
    if awaited.experiment.is_none() || awaited.effect == Effect::Commit {
        return policy(object, version);
    }
    let StoredExperiment { auto_start, problem, .. } = object::experiment(object)?;
    let status: ExperimentStatus = object::status(object)?;
    let observed = Observed { generation: object::generation(object), auto_start, problem, status: &status };
    Ok(experiment(awaited.effect, version, awaited.start.as_ref(), &observed))
}

fn policy(object: &DynamicObject, version: i64) -> Result<Progress, Error> {
    let live = object.data["status"]["liveGeneration"].as_i64();
    let stored = object::policy(object)?;
    Ok(match stored.state {
        _ if live.is_some_and(|live| live >= version) => Progress::Done,
        State::Active | State::Disabled => Progress::Done,
        State::Failed => Progress::Failed(stored.to_error()),
        State::Pending | State::Updating => Progress::Running(
            stored.problem.map_or_else(|| "the operator to process the change".to_owned(), |problem| problem.message),
        ),
    })
}

/// The state of an experiment.
struct Observed<'a> {
    generation: i64,
    auto_start: bool,
    /// The reason why the current generation does not work, or is not accepted.
    problem: Option<Failure>,
    status: &'a ExperimentStatus,
}

/// Returns the progress of an operation on an experiment. `version` is the generation after the effect, and `at` the time of the
/// start or stop.
fn experiment(effect: Effect, version: i64, at: Option<&Time>, observed: &Observed<'_>) -> Progress {
    match (effect, at) {
        (Effect::StartPreview, Some(start)) => started(version, start, observed),
        (Effect::StopPreview, Some(stop)) => stopped(version, stop, observed),
        (Effect::StartPreview | Effect::StopPreview, None) => Progress::Failed(replaced()),
        (Effect::Create | Effect::Update, _) => changed(version, observed),
        // `compute` has handled the other effects.
        (Effect::Delete | Effect::Commit, _) => Progress::Done,
    }
}

/// Returns the progress of the start at the time `start`. It is done when every replica has loaded the candidate of this start.
fn started(version: i64, start: &Time, observed: &Observed<'_>) -> Progress {
    let loaded = observed.status.previewed_start_time.as_ref();
    let Some(preview) = &observed.status.preview_metadata else { return Progress::Failed(replaced()) };
    let is_loaded = loaded == Some(start);
    // All starts since then were of the same version, because generations only increase.
    let is_loaded_by_a_later_start = loaded.is_some_and(|loaded| loaded > start) && preview.generation == version;
    if is_loaded || is_loaded_by_a_later_start {
        return Progress::Done;
    }
    if preview.start_time != *start {
        return Progress::Failed(replaced());
    }
    unless_suspended(preview, observed)
}

/// Returns the progress of the stop at the time `stop`. It is done when no replica evaluates the experiment any more, or when a later
/// start has replaced the stop.
fn stopped(version: i64, stop: &Time, observed: &Observed<'_>) -> Progress {
    let Some(preview) = &observed.status.preview_metadata else { return Progress::Done };
    if preview.state == PreviewState::Active || preview.start_time > *stop {
        return Progress::Done;
    }
    let previewing = observed.status.conditions.condition(ConditionType::Previewing);
    let is_stopped = previewing.is_some_and(|condition| {
        condition.status == ConditionStatus::False.as_str()
            && condition.observed_generation >= Some(version)
            // A condition from before the stop does not count.
            && !is_one_of(&condition.reason, &NOT_STOPPED)
    });
    if is_stopped {
        Progress::Done
    } else {
        Progress::Running("every replica of the policy server to stop it".to_owned())
    }
}

/// Returns the progress of the creation or the update that made the generation `version`. With `autoStart`, it is done when every
/// replica has loaded a candidate of this generation.
fn changed(version: i64, observed: &Observed<'_>) -> Progress {
    let is_current = observed.generation == version;
    let problem = observed.problem.as_ref().filter(|_| is_current).map(Error::failed_version);
    if !observed.auto_start {
        return problem.map_or(Progress::Done, Progress::Failed);
    }
    let preview = observed.status.preview_metadata.as_ref().filter(|preview| preview.generation == version);
    let loaded = observed.status.previewed_start_time.as_ref();
    if preview.is_some_and(|preview| loaded.is_some_and(|loaded| *loaded >= preview.start_time)) {
        return Progress::Done;
    }
    if !is_current {
        return Progress::Failed(updated());
    }
    let progress = preview.map_or_else(|| waiting(observed), |preview| unless_suspended(preview, observed));
    match (progress, problem) {
        (Progress::Running(_), Some(problem)) => Progress::Failed(problem),
        (progress, _) => progress,
    }
}

/// Returns the progress of a preview that was not loaded by every replica: it runs, until the preview is suspended.
fn unless_suspended(preview: &PreviewMetadata, observed: &Observed<'_>) -> Progress {
    match (preview.state, &preview.stop_cause) {
        (PreviewState::Active, _) if preview.generation == observed.generation => waiting(observed),
        // An update of the experiment suspends its preview, even before the operator has written the new state.
        (PreviewState::Active, _) => Progress::Failed(updated()),
        (PreviewState::Suspended, Some(cause)) => Progress::Failed(suspended_by(cause)),
        (PreviewState::Suspended, None) => {
            let message = "the preview was stopped before every replica had loaded the experiment";
            Progress::Failed(Error::new(Code::Aborted, "SUSPENDED", message))
        }
    }
}

fn waiting(observed: &Observed<'_>) -> Progress {
    let previewing = observed.status.conditions.condition(ConditionType::Previewing);
    let current = previewing.filter(|condition| condition.observed_generation == Some(observed.generation));
    let cause = current.map(|condition| format!(": {}", condition.message)).unwrap_or_default();
    Progress::Running(format!("every replica of the policy server to load it{cause}"))
}

/// Returns the error of a start whose preview was suspended before it was loaded.
#[must_use]
pub fn suspended_by(cause: &StopCause) -> Error {
    let code = match &cause.reason {
        reason if is_one_of(reason, &[&reasons::UPDATED]) => return updated(),
        reason if is_one_of(reason, &[&reasons::EXPIRED]) => Code::Aborted,
        reason if is_one_of(reason, &[&reasons::TOO_MANY]) => Code::ResourceExhausted,
        reason if is_one_of(reason, &[&reasons::NO_REPLICAS, &reasons::LOADING_FAILED]) => Code::Unavailable,
        _ => Code::FailedPrecondition,
    };
    Error::new(code, &cause.reason, &*cause.message)
}

fn is_one_of(reason: &str, known: &[&Reason]) -> bool {
    known.iter().any(|known| known.as_str() == reason)
}

fn updated() -> Error {
    let message = "the experiment was updated before every replica had loaded this version";
    Error::new(Code::Aborted, reasons::UPDATED.as_str(), message)
}

fn replaced() -> Error {
    let message = "another start replaced this one before every replica had loaded the experiment";
    Error::new(Code::Aborted, "REPLACED", message)
}

#[cfg(test)]
mod tests;
