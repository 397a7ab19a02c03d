//! The progress of an operation, as a pure function of the object and of the status that the operator writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use proviso_core::{Failure, Reason};
use proviso_crds::{
    ExperimentStatus, PolicySpec, PreviewChange, StartFailure, StartProgress, StopCause, StopProgress, reasons,
};

use super::object;
use crate::error::{Code, Error};
use crate::operation::{AwaitedEffect, Effect, Progress};
use crate::store::{State, StoredExperiment};

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
    let StoredExperiment { auto_start, spec, .. } = object::experiment(object)?;
    let waits_for = WaitsFor::of(&spec);
    let status: ExperimentStatus = object::status(object)?;
    let generation = object::generation(object);
    // The cause of a stop is about a start, and no part of the result of a creation or an update.
    let problem = object::refusal(&status, generation);
    let observed = Observed { generation, auto_start, waits_for, problem, status: &status };
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
    waits_for: WaitsFor,
    /// The reason why the current generation does not work, or is not accepted.
    problem: Option<Failure>,
    status: &'a ExperimentStatus,
}

/// The program that carries out a start or a stop of a preview.
#[derive(Clone, Copy, Debug)]
enum WaitsFor {
    /// Each replica of the policy server.
    Replicas,
    /// The operator: the policy configures components.
    Operator,
}

impl WaitsFor {
    fn of(spec: &PolicySpec) -> Self {
        if spec.configuration.is_some() { Self::Operator } else { Self::Replicas }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Replicas => "every replica of the policy server",
            Self::Operator => "the operator",
        }
    }
}

/// Returns the progress of an operation on an experiment. `version` is the generation after the effect, and `at` the time of the
/// start or stop.
fn experiment(effect: Effect, version: i64, at: Option<&Time>, observed: &Observed<'_>) -> Progress {
    let change = at.map(|time| PreviewChange { time, generation: version });
    match (effect, change) {
        (Effect::StartPreview, Some(start)) => {
            started(StartProgress::of(start, observed.status, observed.generation), observed.waits_for)
        }
        (Effect::StopPreview, Some(stop)) => stopped(StopProgress::of(stop, observed.status), observed.waits_for),
        (Effect::StartPreview | Effect::StopPreview, None) => Progress::Failed(replaced()),
        (Effect::Create | Effect::Update, _) => changed(version, observed),
        // `compute` has handled the other effects.
        (Effect::Delete | Effect::Commit, _) => Progress::Done,
    }
}

fn started(progress: StartProgress, waits_for: WaitsFor) -> Progress {
    match progress {
        StartProgress::Running(message) => {
            let cause = message.map(|message| format!(": {message}")).unwrap_or_default();
            Progress::Running(format!("{} to load it{cause}", waits_for.as_str()))
        }
        StartProgress::Done => Progress::Done,
        StartProgress::Failed(failure) => Progress::Failed(start_error(&failure)),
    }
}

fn stopped(progress: StopProgress, waits_for: WaitsFor) -> Progress {
    match progress {
        StopProgress::Running => Progress::Running(format!("{} to stop it", waits_for.as_str())),
        StopProgress::Done | StopProgress::Restarted => Progress::Done,
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
    let progress = preview.map_or_else(
        || StartProgress::running(observed.status, observed.generation),
        |preview| {
            let start = PreviewChange { time: &preview.start_time, generation: version };
            StartProgress::of(start, observed.status, observed.generation)
        },
    );
    match (started(progress, observed.waits_for), problem) {
        (Progress::Done, _) => Progress::Done,
        _ if !is_current => Progress::Failed(updated()),
        (Progress::Running(_), Some(problem)) => Progress::Failed(problem),
        (progress, _) => progress,
    }
}

/// Returns the error of a start that has failed.
fn start_error(failure: &StartFailure) -> Error {
    match failure {
        StartFailure::Suspended(cause) => suspended_by(cause),
        StartFailure::Stopped => {
            let message = "the preview was stopped before every replica had loaded the experiment";
            Error::new(Code::Aborted, "SUSPENDED", message)
        }
        StartFailure::Updated => updated(),
        StartFailure::Replaced => replaced(),
    }
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
