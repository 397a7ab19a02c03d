//! The status of an experiment, and Events in its namespace. `previewMetadata` is not written here: it records the
//! requests to start and stop the preview, not their results.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::events::{Event, EventType};
use proviso_core::Reason;
use proviso_core::experiment::rollout::{Acceptance, Decision, Progress};
use proviso_core::experiment::{MAX_EXPERIMENTS, etag};
use proviso_crds::names::PREVIEW_START;
use proviso_crds::{ConditionState, ConditionType, ExperimentStatus, PreviewReport, PreviewState, ReplicaCount};
use proviso_crds::{conditions::status_patch, reasons};

use super::observe::ObservedObjects;
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject};
use crate::objects;
use crate::replicas::causes;
use crate::revisions::NOT_LOADED;

/// The conditions of an experiment.
const TYPES: [ConditionType; 3] = [ConditionType::Accepted, ConditionType::Initialized, ConditionType::Previewing];
/// The minimum interval between two writes of the counts of an experiment.
const COUNTS_INTERVAL: Duration = Duration::from_secs(10);

/// Writes the status if it has changed. Returns the time until the next write if the counts may not be written yet.
pub(super) async fn write<K: ExperimentObject>(
    experiment: &K,
    found: &ObservedObjects<K>,
    decision: &Decision,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let known = experiment.status().cloned().unwrap_or_default();
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let mut status = status(experiment, &known, found, decision)?;
    let since = |status: &ExperimentStatus| status.divergence.as_ref().map(|counts| counts.since.clone());
    let counts = |status: &ExperimentStatus| (status.divergence.clone(), status.samples.clone());
    let is_counting = decision.progress != Progress::Suspended && since(&known) == since(&status);
    let mut later = None;
    if counts(&known) != counts(&status) && is_counting {
        let last = context.with_counts_written(|written| written.get(&uid).copied());
        later = last.and_then(|last| COUNTS_INTERVAL.checked_sub(last.elapsed())).filter(|left| !left.is_zero());
        if later.is_some() {
            (status.divergence, status.samples) = counts(&known);
        }
    }
    if status == known {
        return Ok(later);
    }
    // Empty counts do not delay the next write.
    if counts(&known) != counts(&status) && status.divergence.as_ref().is_some_and(|it| !it.is_empty()) {
        context.with_counts_written(|written| written.insert(uid, Instant::now()));
    }
    // Events before the status: see `policies::status`.
    for event in events(&known, &status) {
        context.publish_or_log(experiment, event).await;
    }
    let ours = ExperimentStatus { preview_metadata: None, ..status.clone() };
    let api = kinds::api::<K>(&context.client, experiment);
    let patch = Patch::Apply(status_patch::<K>(&ours));
    let (name, params) = (experiment.name_any(), objects::apply_params());
    K::cache(&context.caches).write(api.patch_status(&name, &params, &patch)).await?;
    Ok(later)
}

fn status<K: ExperimentObject>(
    experiment: &K,
    known: &ExperimentStatus,
    found: &ObservedObjects<K>,
    decision: &Decision,
) -> Result<ExperimentStatus, Error> {
    let generation = experiment.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let policy = kinds::policy_id(experiment, &experiment.spec().policy_ref.name)?.to_string();
    let report = report(known, found, generation);
    let states = condition_states(decision, &policy, generation, found);
    let now = Timestamp::now();
    let conditions = TYPES
        .into_iter()
        .zip(states)
        .map(|(type_, state)| state.into_condition(type_, &known.conditions, Some(generation), now));
    let is_previewed = !matches!(decision.progress, Progress::NotAccepted | Progress::NotStarted | Progress::Suspended);
    let (ready, total) = (decision.ready, decision.total);
    let live = found.live.as_ref().map(|live| &live.policy_ref);
    Ok(ExperimentStatus {
        etag: Some(etag(&uid, generation)),
        live_etag: live.map(|live| etag(&live.uid, live.generation)),
        preview_metadata: known.preview_metadata.clone(),
        divergence: report.as_ref().map(|report| report.counts.clone()),
        samples: report.map(|report| report.samples).unwrap_or_default(),
        replicas: is_previewed.then(|| ReplicaCount {
            ready: ready.try_into().unwrap_or(u32::MAX),
            total: total.try_into().unwrap_or(u32::MAX),
            summary: format!("{ready}/{total}"),
        }),
        conditions: conditions.collect(),
    })
}

/// Returns the results of the last preview: those of the candidate or, after a stop, those in the known status. `None` if
/// the experiment was never started, or was changed after its start.
fn report<K: ExperimentObject>(
    known: &ExperimentStatus,
    found: &ObservedObjects<K>,
    generation: i64,
) -> Option<PreviewReport> {
    let session = known.preview_metadata.as_ref().filter(|session| session.generation == generation)?;
    let start = session.start_time.0.to_string();
    let of_session = found.candidates.iter().find(|candidate| {
        let of = candidate.experiment_ref.as_ref().map(|it| it.generation);
        of == Some(generation) && candidate.annotations().get(PREVIEW_START) == Some(&start)
    });
    if let Some(candidate) = of_session {
        let replicas = candidate.status.replicas.iter();
        return Some(PreviewReport::sum(replicas.filter_map(|it| it.preview.as_ref()), &session.start_time));
    }
    match &known.divergence {
        Some(counts) if counts.since == session.start_time => {
            Some(PreviewReport { counts: counts.clone(), samples: known.samples.clone() })
        }
        _ => (session.state == PreviewState::Active).then(|| PreviewReport::new(session.start_time.clone())),
    }
}

/// Returns the states of the conditions of [`TYPES`].
fn condition_states<K: ExperimentObject>(
    decision: &Decision,
    policy: &str,
    generation: i64,
    found: &ObservedObjects<K>,
) -> [ConditionState; 3] {
    use ConditionState as State;
    let accepted = match decision.acceptance {
        Acceptance::Accepted => {
            State::yes(reasons::ACCEPTED, format!("it is one of at most {MAX_EXPERIMENTS} experiments of {policy}"))
        }
        Acceptance::PolicyNotFound => {
            State::no(reasons::POLICY_NOT_FOUND, format!("there is no policy {policy}: the experiment waits for it"))
        }
        Acceptance::TooMany => {
            let message =
                format!("{policy} has {MAX_EXPERIMENTS} older experiments, more are not previewed: delete one");
            State::no(reasons::TOO_MANY, message)
        }
    };
    let initialized = || State::yes(reasons::PREPARED, "its program was compiled and accepted its settings");
    let idle = |reason: Reason, message: &str| (State::unknown(reason.clone(), message), State::no(reason, message));
    let (initialized, previewing) = match &decision.progress {
        Progress::NotAccepted => idle(reasons::NOT_ACCEPTED, &accepted.message),
        Progress::NotStarted => idle(reasons::NOT_STARTED, "it was not started, and spec.autoStart is false"),
        Progress::Suspended => idle(reasons::SUSPENDED, &format!("generation {generation} is not started")),
        Progress::Initializing => (
            State::unknown(reasons::PREPARING, "the policy server prepares it"),
            State::no(reasons::PREPARING, NOT_LOADED),
        ),
        Progress::InitializationFailed(failure) => {
            (failure.clone().into(), State::no(reasons::NOT_INITIALIZED, "it cannot be prepared"))
        }
        Progress::NoReplicas => {
            (initialized(), State::no(reasons::NO_REPLICAS, "no replica of the policy server is Ready"))
        }
        Progress::Loading => (initialized(), State::no(reasons::LOADING, NOT_LOADED)),
        Progress::LoadingFailed(replicas) => {
            let message = format!("{NOT_LOADED}; {}", causes(replicas));
            (initialized(), State::no(reasons::LOADING_FAILED, message))
        }
        Progress::Previewing => (initialized(), State::yes(reasons::PREVIEWING, previewing_message(decision, found))),
    };
    [accepted, initialized, previewing]
}

/// Returns the message about the requests that the experiment evaluates.
fn previewing_message<K: ExperimentObject>(decision: &Decision, found: &ObservedObjects<K>) -> &'static str {
    match (decision.webhook, &found.live) {
        (false, _) => "every replica evaluates it for the requests that the policy answers",
        (true, Some(_)) => {
            "it covers other requests than the policy, and has its own webhook, which allows every request"
        }
        (true, None) => {
            "the policy is not live: the experiment has its own webhook, and is compared with a policy that allows all"
        }
    }
}

/// Returns the Events for `kubectl describe`, which report changes and not states.
fn events(old: &ExperimentStatus, new: &ExperimentStatus) -> Vec<Event> {
    let mut events = Vec::new();
    for condition in &new.conditions {
        let is_new = !old.conditions.iter().any(|it| {
            (&it.type_, &it.status, &it.reason, it.observed_generation)
                == (&condition.type_, &condition.status, &condition.reason, condition.observed_generation)
        });
        let is_previewing = condition.type_ == ConditionType::Previewing.as_str();
        let (type_, is_reported) = match condition.status.as_str() {
            "True" => (EventType::Normal, is_previewing),
            "False" if is_previewing => (EventType::Warning, condition.reason == reasons::LOADING_FAILED),
            "False" => (EventType::Warning, true),
            _ => (EventType::Normal, false),
        };
        if is_new && is_reported {
            let generation = condition.observed_generation.unwrap_or_default();
            events.push(Event {
                type_,
                reason: condition.reason.clone(),
                note: Some(format!("generation {generation}: {}", condition.message)),
                action: "Preview".to_owned(),
                secondary: None,
            });
        }
    }
    events
}
