//! What the owner of an experiment is told: its status, and Events in its own namespace. `previewMetadata` is not written
//! here: it says what was asked for, and not what came of it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::events::{Event, EventType};
use proviso_core::Reason;
use proviso_core::experiment::rollout::{Acceptance, Decision, Progress};
use proviso_core::experiment::{MAX_EXPERIMENTS, etag};
use proviso_crds::conditions::{reasons, status_patch};
use proviso_crds::names::PREVIEW_START;
use proviso_crds::{ConditionState, ConditionType, ExperimentStatus, PreviewReport, PreviewState, ReplicaCount};

use super::observe::Seen;
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject};
use crate::objects;
use crate::revisions::NOT_LOADED;

/// The conditions of an experiment.
const TYPES: [ConditionType; 3] = [ConditionType::Accepted, ConditionType::Initialized, ConditionType::Previewing];
/// How often what came of an experiment is written at most.
const COUNTED_EVERY: Duration = Duration::from_secs(10);

/// Writes the status if it says something new. When there is more to say than may be said now, how long until then.
pub(super) async fn write<K: ExperimentObject>(
    experiment: &K,
    seen: &Seen<K>,
    decision: &Decision,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let known = experiment.status().cloned().unwrap_or_default();
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let mut status = status(experiment, &known, seen, decision)?;
    let since = |status: &ExperimentStatus| status.divergence.as_ref().map(|counts| counts.since.clone());
    let counts = |status: &ExperimentStatus| (status.divergence.clone(), status.samples.clone());
    let is_counting = decision.progress != Progress::Suspended && since(&known) == since(&status);
    let mut later = None;
    if counts(&known) != counts(&status) && is_counting {
        let last = context.with_counted(|counted| counted.get(&uid).copied());
        later = last.and_then(|last| COUNTED_EVERY.checked_sub(last.elapsed())).filter(|left| !left.is_zero());
        if later.is_some() {
            (status.divergence, status.samples) = counts(&known);
        }
    }
    if status == known {
        return Ok(later);
    }
    // That nothing was counted yet puts nothing off.
    if counts(&known) != counts(&status) && status.divergence.as_ref().is_some_and(|it| !it.is_empty()) {
        context.with_counted(|counted| counted.insert(uid, Instant::now()));
    }
    // Before the status that they follow from: see `policies::status`.
    for event in events(&known, &status) {
        context.tell(experiment, event).await;
    }
    let ours = ExperimentStatus { preview_metadata: None, ..status.clone() };
    let api = kinds::api::<K>(&context.client, experiment);
    let patch = Patch::Apply(status_patch::<K>(&ours));
    let (name, how) = (experiment.name_any(), objects::apply());
    K::cache(&context.caches).write(api.patch_status(&name, &how, &patch)).await?;
    Ok(later)
}

fn status<K: ExperimentObject>(
    experiment: &K,
    known: &ExperimentStatus,
    seen: &Seen<K>,
    decision: &Decision,
) -> Result<ExperimentStatus, Error> {
    let generation = experiment.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let policy = kinds::policy_id(experiment, &experiment.spec().policy_ref.name)?.to_string();
    let report = report(known, seen, generation);
    let steps = steps(decision, &policy, generation, seen);
    let now = Timestamp::now();
    let conditions = TYPES
        .into_iter()
        .zip(steps)
        .map(|(type_, step)| step.into_condition(type_, &known.conditions, Some(generation), now));
    let is_previewed = !matches!(decision.progress, Progress::NotAccepted | Progress::NotStarted | Progress::Suspended);
    let (ready, total) = (decision.ready, decision.total);
    let live = seen.live.as_ref().map(|live| &live.policy_ref);
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

/// What came of the preview that was started last. It stays when that is stopped, and goes with an update.
fn report<K: ExperimentObject>(known: &ExperimentStatus, seen: &Seen<K>, generation: i64) -> Option<PreviewReport> {
    let session = known.preview_metadata.as_ref().filter(|session| session.generation == generation)?;
    let start = session.start_time.0.to_string();
    let of_session = seen.candidates.iter().find(|candidate| {
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

/// What the conditions of [`TYPES`] say.
fn steps<K: ExperimentObject>(
    decision: &Decision,
    policy: &str,
    generation: i64,
    seen: &Seen<K>,
) -> [ConditionState; 3] {
    use ConditionState as State;
    let accepted = match decision.acceptance {
        Acceptance::Accepted => {
            State::yes(Reason::new("Accepted"), format!("it is one of at most {MAX_EXPERIMENTS} of {policy}"))
        }
        Acceptance::PolicyNotFound => {
            State::no(reasons::POLICY_NOT_FOUND, format!("there is no policy {policy}: it waits for one"))
        }
        Acceptance::TooMany => {
            let message =
                format!("{policy} has {MAX_EXPERIMENTS} older experiments, more are not previewed: delete one");
            State::no(reasons::TOO_MANY, message)
        }
    };
    let initialized = || State::yes(reasons::PREPARED, "its program was compiled and accepted its settings");
    let idle = |reason, message: &str| {
        let reason = Reason::new(reason);
        (State::unknown(reason.clone(), message), State::no(reason, message))
    };
    let (initialized, previewing) = match &decision.progress {
        Progress::NotAccepted => idle("NotAccepted", &accepted.message),
        Progress::NotStarted => idle("NotStarted", "it was not started, and spec.autoStart is false"),
        Progress::Suspended => idle("Suspended", &format!("generation {generation} is not started")),
        Progress::Initializing => (
            State::unknown(reasons::PREPARING, "the policy server is at work"),
            State::no(reasons::PREPARING, NOT_LOADED),
        ),
        Progress::InitializationFailed(failure) => {
            (failure.clone().into(), State::no(reasons::NOT_INITIALIZED, "it does not work"))
        }
        Progress::NoReplicas => {
            (initialized(), State::no(reasons::NO_REPLICAS, "no replica of the policy server is Ready"))
        }
        Progress::Loading => (initialized(), State::no(reasons::LOADING, NOT_LOADED)),
        Progress::LoadingFailed(replicas) => {
            let causes = replicas.iter().map(|(pod, failure)| format!("{pod}: {failure}"));
            let message = format!("{NOT_LOADED}; {}", causes.collect::<Vec<_>>().join("; "));
            (initialized(), State::no(reasons::LOADING_FAILED, message))
        }
        Progress::Previewing => (initialized(), State::yes(Reason::new("Previewing"), how(decision, seen))),
    };
    [accepted, initialized, previewing]
}

/// What it is asked about.
fn how<K: ExperimentObject>(decision: &Decision, seen: &Seen<K>) -> &'static str {
    match (decision.webhook, &seen.live) {
        (false, _) => "every replica asks it about the requests that the policy answers",
        (true, Some(_)) => {
            "it covers other requests than the policy does, and has a webhook of its own that allows all"
        }
        (true, None) => {
            "the policy answers nothing now: it has a webhook of its own, and is compared with what allows all"
        }
    }
}

/// What people see in `kubectl describe`: changes, not states.
fn events(old: &ExperimentStatus, new: &ExperimentStatus) -> Vec<Event> {
    let mut events = Vec::new();
    for condition in &new.conditions {
        let is_new = !old.conditions.iter().any(|it| {
            (&it.type_, &it.status, &it.reason, it.observed_generation)
                == (&condition.type_, &condition.status, &condition.reason, condition.observed_generation)
        });
        let is_previewing = condition.type_ == ConditionType::Previewing.as_str();
        let (type_, is_told) = match condition.status.as_str() {
            "True" => (EventType::Normal, is_previewing),
            "False" if is_previewing => (EventType::Warning, condition.reason == reasons::LOADING_FAILED),
            "False" => (EventType::Warning, true),
            _ => (EventType::Normal, false),
        };
        if is_new && is_told {
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
