//! What the owner of a policy is told: its status, and Events in its own namespace. Whoever may see the policy needs no
//! access to the operator's namespace to know why a version does not serve.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::events::{Event, EventType};
use proviso_core::rollout::{Decision, Failure, Observed, Progress};
use proviso_crds::{PolicyPhase, PolicyStatus, ReplicaCount};
use serde_json::json;

use super::object::{self, PolicyObject};
use super::observe::{BREAK_GLASS, BreakGlass, Seen};
use crate::context::{Context, Error};
use crate::objects::{self, condition};

/// Of the condition `Live` while somebody holds the webhook.
const BROKEN_GLASS: &str = "BreakGlass";

/// Writes the status if it says something new.
pub(super) async fn write<K: PolicyObject>(
    policy: &K,
    seen: &Seen,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Result<(), Error> {
    let known = policy.status().cloned().unwrap_or_default();
    let held = seen.break_glass().filter(|_| decision.is_held);
    let status = status(&known.conditions, observed, decision, held.as_ref(), policy);
    if status == known {
        return Ok(());
    }
    // Before the status that they follow from: an operator that ends in between tells them again rather than not at all.
    for event in events(&known, &status) {
        context.tell(policy, event).await;
    }
    let kind = format!("{:?}", K::KIND);
    let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": kind, "status": status});
    let policies = object::api::<K>(&context.client, policy);
    policies.patch_status(&policy.name_any(), &objects::apply(), &Patch::Apply(patch)).await?;
    Ok(())
}

fn status<K: PolicyObject>(
    known: &[Condition],
    observed: &Observed,
    decision: &Decision,
    held: Option<&BreakGlass>,
    policy: &K,
) -> PolicyStatus {
    let answering = match decision.live {
        Some(live) if live != observed.generation => format!("generation {live} goes on answering"),
        Some(_) => "requests are answered by it".to_owned(),
        None => "nothing answers".to_owned(),
    };
    let mut steps = steps(decision, &answering);
    if let Some(held) = held {
        steps[3] = ("Unknown", BROKEN_GLASS.to_owned(), told(held));
    }
    let names = ["Scheduled", "Initialized", "Ready", "Live"];
    let conditions = names.iter().zip(steps).map(|(name, (status, reason, message))| {
        condition(known, name, status, &reason, &message, observed.generation)
    });
    let (ready, total) = (decision.ready, decision.total);
    PolicyStatus {
        phase: Some(phase(decision, observed)),
        live_generation: decision.live,
        conditions: conditions.collect(),
        replicas: Some(ReplicaCount {
            ready: ready.try_into().unwrap_or(u32::MAX),
            total: total.try_into().unwrap_or(u32::MAX),
            summary: format!("{ready}/{total}"),
        }),
        mode: policy.spec().admission.as_ref().map(|admission| admission.mode),
    }
}

fn phase(decision: &Decision, observed: &Observed) -> PolicyPhase {
    match decision.progress {
        Progress::Disabled => PolicyPhase::Disabled,
        Progress::Live => PolicyPhase::Active,
        Progress::InitializationFailed(_) | Progress::LoadingFailed(_) => PolicyPhase::Failed,
        _ if observed.live.is_some() => PolicyPhase::Updating,
        _ => PolicyPhase::Pending,
    }
}

type Step = (&'static str, String, String);

/// Why nobody but who broke the glass knows what the API server asks, and how that ends.
fn told(held: &BreakGlass) -> String {
    let BreakGlass { configuration, why } = held;
    format!(
        "{configuration} is as somebody left it who gave the reason {why:?}: it is neither restored nor moved until they, or \
         another administrator of the cluster, run: kubectl annotate {configuration} {BREAK_GLASS}-"
    )
}

/// Status, reason and message of `Scheduled`, `Initialized`, `Ready` and `Live`.
fn steps(decision: &Decision, answering: &str) -> [Step; 4] {
    let yes = |reason: &str, message: &str| ("True", reason.to_owned(), message.to_owned());
    let no = |reason: &str, message: &str| ("False", reason.to_owned(), message.to_owned());
    let wait = |reason: &str, message: &str| ("Unknown", reason.to_owned(), message.to_owned());
    let failed = |failure: &Failure| no(&failure.reason, &failure.message);
    let scheduled = || yes("RevisionCreated", "there is a revision of this generation");
    let initialized = || yes("Prepared", "its program was compiled and accepted its settings");
    let served = format!("{} of {} Ready replicas serve it", decision.ready, decision.total);
    let not_yet = |reason: &str| no(reason, &format!("not yet; {answering}"));
    match &decision.progress {
        Progress::Unscheduled => [
            scheduled(),
            wait("Preparing", "the policy server has not looked at it yet"),
            no("Preparing", &served),
            not_yet("Preparing"),
        ],
        Progress::Initializing => [
            scheduled(),
            wait("Preparing", "the policy server is at work"),
            no("Preparing", &served),
            not_yet("Preparing"),
        ],
        Progress::InitializationFailed(failure) => {
            [scheduled(), failed(failure), no("NotInitialized", &served), not_yet("NotInitialized")]
        }
        Progress::NoReplicas => [
            scheduled(),
            initialized(),
            no("NoReplicas", "no replica of the policy server is Ready"),
            not_yet("NoReplicas"),
        ],
        Progress::Loading => [scheduled(), initialized(), no("Loading", &served), not_yet("Loading")],
        Progress::LoadingFailed(replicas) => {
            let causes: Vec<_> = replicas
                .iter()
                .map(|(pod, failure)| format!("{pod}: {}: {}", failure.reason, failure.message))
                .collect();
            let message = format!("{served}; {}", causes.join("; "));
            [scheduled(), initialized(), no("LoadingFailed", &message), not_yet("LoadingFailed")]
        }
        Progress::Held => [scheduled(), initialized(), yes("Loaded", &served), not_yet(BROKEN_GLASS)],
        Progress::Live => [scheduled(), initialized(), yes("Loaded", &served), yes("Live", answering)],
        Progress::Disabled => [
            scheduled(),
            wait("Disabled", "spec.enabled is false"),
            no("Disabled", "spec.enabled is false"),
            no("Disabled", "spec.enabled is false: requests are not decided by this policy"),
        ],
    }
}

/// What people see in `kubectl describe`: changes, not states.
fn events(old: &PolicyStatus, new: &PolicyStatus) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |type_, reason: &str, note: String| {
        let action = "Rollout".to_owned();
        events.push(Event { type_, reason: reason.to_owned(), note: Some(note), action, secondary: None });
    };
    if let Some(live) = new.live_generation.filter(|_| new.live_generation != old.live_generation) {
        add(EventType::Normal, "Live", format!("generation {live} answers requests"));
    }
    if old.live_generation.is_some() && new.live_generation.is_none() {
        add(EventType::Normal, "NotLive", "requests are not decided by this policy any more".to_owned());
    }
    let held = |status: &PolicyStatus| status.conditions.iter().find(|it| it.reason == BROKEN_GLASS).cloned();
    match (held(old), held(new)) {
        (before, Some(now)) if before.as_ref().is_none_or(|before| before.message != now.message) => {
            add(EventType::Warning, BROKEN_GLASS, now.message);
        }
        (Some(_), None) => add(EventType::Normal, "BreakGlassEnded", "the webhook is Proviso's again".to_owned()),
        _ => {}
    }
    for condition in new.conditions.iter().filter(|condition| condition.status == "False") {
        let is_new = !old.conditions.iter().any(|it| {
            (&it.type_, &it.reason, &it.message, it.observed_generation)
                == (&condition.type_, &condition.reason, &condition.message, condition.observed_generation)
        });
        let is_failure = condition.type_ == "Initialized" || condition.reason == "LoadingFailed";
        if is_new && is_failure && condition.type_ != "Live" {
            let generation = condition.observed_generation.unwrap_or_default();
            let note = format!("generation {generation}: {}", condition.message);
            add(EventType::Warning, &condition.reason, note);
        }
    }
    events
}

#[cfg(test)]
mod tests;
