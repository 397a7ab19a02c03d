//! The status of a policy, and Events in its namespace. Users who may read the policy see there why a version does
//! not serve, without access to the operator's namespace.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::events::{Event, EventType};
use proviso_core::rollout::{Decision, Observed, Progress, REPORT_TIMEOUT};
use proviso_core::{Failure, Reason};
use proviso_crds::names::BREAK_GLASS;
use proviso_crds::{ConditionState, ConditionStatus, ConditionType, PolicyPhase, PolicyStatus, ReplicaCount};
use proviso_crds::{conditions::status_patch, reasons};

use super::observe::{BreakGlass, ObservedObjects};
use super::words::{Effect, configuration_states};
use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::objects;
use crate::replicas::{causes, names};
use crate::revisions::{LOADED, NOT_LOADED, Revision};

/// The conditions of a policy that this file writes. `rollback` writes the condition `RolledBack`.
const TYPES: [ConditionType; 4] =
    [ConditionType::Scheduled, ConditionType::Initialized, ConditionType::Ready, ConditionType::Live];

/// Writes the status if it has changed.
pub(super) async fn write<K: PolicyObject>(
    policy: &K,
    found: &ObservedObjects,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<(), Error> {
    let known = known_status(policy);
    let break_glass = found.break_glass().filter(|_| decision.is_break_glass);
    let server = &policy.spec().policy_server;
    let status = status(&known.conditions, observed, decision, break_glass.as_ref(), &found.revisions, server);
    if status == known {
        return Ok(());
    }
    // Events before the status: an operator that stops in between publishes them twice instead of never.
    for event in events(&known, &status, Effect::of(observed.needs_replicas)) {
        context.publish_or_log(policy, event).await;
    }
    apply(policy, &status, context).await
}

/// Reports that the API server has refused a write of the operator. Everything but the condition `Live` stays as it is.
pub(super) async fn write_refusal<K: PolicyObject>(policy: &K, error: &Error, context: &Context) -> Result<(), Error> {
    let (known, generation) = (known_status(policy), policy.meta().generation.unwrap_or_default());
    let mut status = known.clone();
    let live = refused(error, &known, generation, Effect::of_spec(policy.spec()));
    let note = format!("generation {generation}: {}", live.message);
    let live = live.into_condition(ConditionType::Live, &known.conditions, Some(generation), Timestamp::now());
    if known.conditions.contains(&live) {
        return Ok(());
    }
    let (type_, action) = (EventType::Warning, "Rollout".to_owned());
    let event = Event { type_, reason: live.reason.clone(), note: Some(note), action, secondary: None };
    context.publish_or_log(policy, event).await;
    status.conditions.retain(|condition| condition.type_ != live.type_);
    status.conditions.push(live);
    apply(policy, &status, context).await
}

/// Returns the state of the condition `Live` after a refusal.
fn refused(error: &Error, known: &PolicyStatus, generation: i64, effect: Effect) -> ConditionState {
    let message = |live: &str| format!("the operator cannot apply this generation: {error}; {live}");
    match known.live_generation {
        Some(live) if live == generation => ConditionState::unknown(error.reason(), message("it was live before")),
        Some(live) => ConditionState::no(error.reason(), message(&effect.goes_on(live))),
        None => ConditionState::no(error.reason(), message(effect.none())),
    }
}

/// Returns the part of the status that this file writes. The controller of experiments writes `abortedCommit`.
fn known_status<K: PolicyObject>(policy: &K) -> PolicyStatus {
    let mut known = policy.status().cloned().unwrap_or_default();
    known.conditions.retain(|condition| TYPES.iter().any(|type_| condition.type_ == type_.as_str()));
    known.aborted_commit = None;
    known
}

async fn apply<K: PolicyObject>(policy: &K, status: &PolicyStatus, context: &Context) -> Result<(), Error> {
    let policies = kinds::api::<K>(&context.client, policy);
    let patch = Patch::Apply(status_patch::<K>(status));
    let (name, params) = (policy.name_any(), objects::apply_params());
    Ok(K::cache(&context.caches).write(policies.patch_status(&name, &params, &patch)).await?)
}

fn status(
    known: &[Condition],
    observed: &Observed,
    decision: &Decision,
    break_glass: Option<&BreakGlass>,
    revisions: &[Revision],
    server: &str,
) -> PolicyStatus {
    let effect = Effect::of(observed.needs_replicas);
    let answering = effect.live(decision.answering, observed.generation);
    let mut states = match effect {
        Effect::Requests => condition_states(decision, &answering, server),
        Effect::Components => {
            let newest = revisions.iter().find(|revision| revision.policy_ref.generation == observed.generation);
            configuration_states(decision, newest, &answering)
        }
    };
    if let Some(break_glass) = break_glass {
        states[3] = ConditionState::unknown(reasons::BREAK_GLASS, break_glass_message(break_glass, decision));
    }
    if let Some(failure) = &decision.refusal {
        let message = format!("{}; {answering}", failure.message);
        states[0] = ConditionState::no(failure.reason.clone(), message);
    }
    let now = Timestamp::now();
    let conditions = TYPES
        .into_iter()
        .zip(states)
        .map(|(type_, state)| state.into_condition(type_, known, Some(observed.generation), now));
    let (ready, total) = (decision.ready, decision.total);
    let live = revisions.iter().find(|revision| Some(revision.policy_ref.generation) == decision.answering);
    PolicyStatus {
        phase: Some(phase(decision)),
        live_generation: decision.answering,
        conditions: conditions.collect(),
        replicas: observed.needs_replicas.then(|| ReplicaCount {
            ready: ready.try_into().unwrap_or(u32::MAX),
            total: total.try_into().unwrap_or(u32::MAX),
            summary: format!("{ready}/{total}"),
        }),
        mode: live.and_then(|live| live.admission.as_ref()).map(|admission| admission.mode),
        aborted_commit: None,
    }
}

fn phase(decision: &Decision) -> PolicyPhase {
    match decision.progress {
        Progress::Disabled => PolicyPhase::Disabled,
        Progress::Live => PolicyPhase::Active,
        Progress::Refused(_) | Progress::InitializationFailed(_) | Progress::LoadingFailed(_) => PolicyPhase::Failed,
        _ if decision.answering.is_some() => PolicyPhase::Updating,
        _ => PolicyPhase::Pending,
    }
}

/// Returns the message for break-glass: the operator leaves the webhook unchanged, and a command ends break-glass.
fn break_glass_message(break_glass: &BreakGlass, decision: &Decision) -> String {
    let BreakGlass { configuration, reason } = break_glass;
    let generation = |it: Option<i64>| it.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let difference = if decision.answering == decision.live {
        String::new()
    } else {
        let (called, live) = (generation(decision.answering), generation(decision.live));
        format!(" (the generation that it calls: {called}; the live generation on record: {live})")
    };
    format!(
        "{configuration} has the break-glass annotation, with the reason {reason:?}{difference}: the operator neither restores \
         nor moves it until an administrator of the cluster runs: kubectl annotate {configuration} {BREAK_GLASS}-"
    )
}

/// Returns the message about replicas that report nothing.
fn silence() -> String {
    let seconds = REPORT_TIMEOUT.as_secs();
    format!("Ready, but nothing reported about this generation for {seconds} s: the log of the pod has the cause")
}

/// Returns the state of the condition `Ready` if every Ready replica has loaded the generation, or if it is live: with
/// the warnings about replicas, if there are any.
fn loaded(decision: &Decision) -> ConditionState {
    let silence = |pod: &String| (pod.clone(), Failure::new(reasons::REPLICA_SILENT, silence()));
    let warnings: Vec<_> = decision.warnings.iter().cloned().chain(decision.silent.iter().map(silence)).collect();
    match warnings.first() {
        Some((_, first)) => {
            let message = format!("it is loaded, with warnings about replicas; {}", causes(&warnings));
            ConditionState::yes(first.reason.clone(), message)
        }
        None => ConditionState::yes(reasons::LOADED, LOADED),
    }
}

/// Returns the states of the conditions of [`TYPES`]. `server` is the name of the policy server.
fn condition_states(decision: &Decision, answering: &str, server: &str) -> [ConditionState; 4] {
    use ConditionState as State;
    let scheduled = || State::yes(reasons::REVISION_CREATED, "there is a revision of this generation");
    let initialized = || State::yes(reasons::PREPARED, "its program was compiled and accepted its settings");
    let not_yet = |reason: Reason| State::no(reason, format!("not yet; {answering}"));
    match &decision.progress {
        Progress::Refused(failure) => [
            failure.clone().into(),
            State::unknown(failure.reason.clone(), "the generation is not scheduled"),
            State::no(failure.reason.clone(), NOT_LOADED),
            not_yet(failure.reason.clone()),
        ],
        Progress::Unscheduled => [
            scheduled(),
            State::unknown(reasons::PREPARING, "the policy server has not begun to prepare it"),
            State::no(reasons::PREPARING, NOT_LOADED),
            not_yet(reasons::PREPARING),
        ],
        Progress::Initializing => [
            scheduled(),
            State::unknown(reasons::PREPARING, "the policy server prepares it"),
            State::no(reasons::PREPARING, NOT_LOADED),
            not_yet(reasons::PREPARING),
        ],
        Progress::NotPrepared => {
            let message = format!(
                "no leader of the PolicyServer {server} has reported for {} s that it has prepared it: the condition \
                 LeaderElected of the PolicyServer, and the log of its leader, have the cause",
                REPORT_TIMEOUT.as_secs()
            );
            [
                scheduled(),
                State::unknown(reasons::NOT_PREPARED, message.clone()),
                State::no(reasons::NOT_PREPARED, message),
                not_yet(reasons::NOT_PREPARED),
            ]
        }
        Progress::InitializationFailed(failure) => [
            scheduled(),
            failure.clone().into(),
            State::no(reasons::NOT_INITIALIZED, NOT_LOADED),
            not_yet(reasons::NOT_INITIALIZED),
        ],
        Progress::NoReplicas => [
            scheduled(),
            initialized(),
            State::no(reasons::NO_REPLICAS, "no replica of the policy server is Ready"),
            not_yet(reasons::NO_REPLICAS),
        ],
        Progress::Loading => {
            [scheduled(), initialized(), State::no(reasons::LOADING, NOT_LOADED), not_yet(reasons::LOADING)]
        }
        Progress::Silent => {
            let message = format!("{NOT_LOADED}; {}: {}", names(&decision.silent), silence());
            let silent = State::no(reasons::REPLICA_SILENT, message);
            [scheduled(), initialized(), silent, not_yet(reasons::REPLICA_SILENT)]
        }
        Progress::LoadingFailed(replicas) => {
            let failed = State::no(reasons::LOADING_FAILED, format!("{NOT_LOADED}; {}", causes(replicas)));
            [scheduled(), initialized(), failed, not_yet(reasons::LOADING_FAILED)]
        }
        Progress::BreakGlass => [scheduled(), initialized(), loaded(decision), not_yet(reasons::BREAK_GLASS)],
        Progress::Live => [scheduled(), initialized(), loaded(decision), State::yes(reasons::LIVE, answering)],
        Progress::Disabled => [
            scheduled(),
            State::unknown(reasons::DISABLED, "spec.enabled is false"),
            State::no(reasons::DISABLED, "spec.enabled is false"),
            State::no(reasons::DISABLED, "spec.enabled is false: requests are not decided by this policy"),
        ],
    }
}

/// Returns the Events for `kubectl describe`, which report changes and not states.
fn events(old: &PolicyStatus, new: &PolicyStatus, effect: Effect) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |type_, reason: &str, note: String| {
        let action = "Rollout".to_owned();
        events.push(Event { type_, reason: reason.to_owned(), note: Some(note), action, secondary: None });
    };
    if let Some(live) = new.live_generation.filter(|_| new.live_generation != old.live_generation) {
        add(EventType::Normal, reasons::LIVE.as_str(), effect.became_live(live));
    }
    if old.live_generation.is_some() && new.live_generation.is_none() {
        add(EventType::Normal, reasons::NOT_LIVE.as_str(), effect.ended().to_owned());
    }
    let break_glass =
        |status: &PolicyStatus| status.conditions.iter().find(|it| it.reason == reasons::BREAK_GLASS).cloned();
    match (break_glass(old), break_glass(new)) {
        (before, Some(now)) if before.as_ref().is_none_or(|before| before.message != now.message) => {
            add(EventType::Warning, reasons::BREAK_GLASS.as_str(), now.message);
        }
        (Some(_), None) => {
            let note = "the operator reconciles the webhook again".to_owned();
            add(EventType::Normal, reasons::BREAK_GLASS_ENDED.as_str(), note);
        }
        _ => {}
    }
    for condition in new.conditions.iter().filter(|condition| is_problem(condition)) {
        let is_new = !old.conditions.iter().any(|it| {
            (&it.type_, &it.reason, &it.message, it.observed_generation)
                == (&condition.type_, &condition.reason, &condition.message, condition.observed_generation)
        });
        if is_new {
            let generation = condition.observed_generation.unwrap_or_default();
            let note = format!("generation {generation}: {}", condition.message);
            add(EventType::Warning, &condition.reason, note);
        }
    }
    events
}

/// Returns true if the condition reports a problem of the leader, of a replica or of a validation.
fn is_problem(condition: &Condition) -> bool {
    let is_false = condition.status == ConditionStatus::False.as_str();
    match ConditionType::parse(&condition.type_) {
        Some(ConditionType::Scheduled | ConditionType::Initialized) => {
            is_false || condition.reason == reasons::VALIDATION_FAILED
        }
        Some(ConditionType::Ready) if is_false => {
            let problems = [reasons::LOADING_FAILED, reasons::NOT_PREPARED, reasons::REPLICA_SILENT];
            problems.iter().any(|problem| condition.reason == *problem)
        }
        // A revision that is loaded with a restriction.
        Some(ConditionType::Ready) => condition.reason != reasons::LOADED && condition.reason != reasons::DELIVERABLE,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
