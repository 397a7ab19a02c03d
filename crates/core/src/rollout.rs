//! What is to be done about one policy in a cluster: which of its generations answers, which revisions are loaded, which
//! are let go. A function of what was observed, without a clock and without a cluster (Kubewarden's RFC on the policy
//! lifecycle, "Policy Lifecycle").

use std::time::Duration;

use crate::failure::Failure;

/// How long the revisions of a deleted policy go on answering after its webhook is gone.
pub const DELETE_AFTER: Duration = Duration::from_secs(10);

/// One policy, its revisions, and who serves them.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The newest one: `metadata.generation`.
    pub generation: i64,
    pub is_enabled: bool,
    pub is_deleted: bool,
    /// The generation that the webhook points at; none if there is no webhook.
    pub live: Option<i64>,
    /// Whether somebody has taken the webhook into their own hands: it stays as it is.
    pub is_held: bool,
    /// In any order.
    pub revisions: Vec<Revision>,
    /// Of the policy server that the newest generation names.
    pub pods: Vec<Pod>,
    /// How many revisions that do not serve are kept.
    pub history_limit: usize,
    /// How long the generation before the live one goes on answering: API servers learn of a switch at different times.
    pub retire_after: Duration,
}

/// A `PolicyRevision`.
#[derive(Clone, Debug)]
pub struct Revision {
    pub generation: i64,
    pub is_enabled: bool,
    /// What the leader found; none while it is at work.
    pub initialized: Option<Result<(), Failure>>,
    pub replicas: Vec<Replica>,
    /// For how long another generation, or none, has been live; none while this one is, or if it never was.
    pub replaced_for: Option<Duration>,
}

/// What one replica says about a revision.
#[derive(Clone, Debug)]
pub struct Replica {
    pub pod: Pod,
    /// Whether it serves the revision, or why not; none while it is at work.
    pub result: Option<Result<(), Failure>>,
}

/// A pod of a policy server that is Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    /// Tells it from its predecessor of the same name.
    pub uid: String,
}

/// What is to be done, and what is to be said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the newest generation needs a revision.
    pub create: bool,
    /// Revisions that are loaded again, or not any more, by generation.
    pub enable: Vec<i64>,
    pub disable: Vec<i64>,
    /// Revisions that go.
    pub delete: Vec<i64>,
    /// The generation that the webhook points at from now on; none if there is to be no webhook.
    pub live: Option<i64>,
    /// Whether the webhook is left as it is, because somebody holds it.
    pub is_held: bool,
    pub progress: Progress,
    /// How many of the Ready pods serve the newest generation.
    pub ready: usize,
    pub total: usize,
    /// Whether nothing of a deleted policy is left.
    pub is_gone: bool,
    /// When time alone changes the decision.
    pub look_again: Option<Duration>,
}

/// How far the newest generation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has no revision yet.
    Unscheduled,
    /// The leader is at work.
    Initializing,
    InitializationFailed(Failure),
    /// No pod of the policy server is Ready.
    NoReplicas,
    /// Replicas load it.
    Loading,
    /// These pods cannot load it; the others wait for them.
    LoadingFailed(Vec<(String, Failure)>),
    /// Every Ready pod serves it; somebody holds the webhook where it is.
    Held,
    Live,
    Disabled,
}

/// Decides.
#[must_use]
pub fn decide(observed: &Observed) -> Decision {
    let newest = observed.revisions.iter().find(|revision| revision.generation == observed.generation);
    let ready = newest.map_or(0, |revision| observed.pods.iter().filter(|pod| serves(revision, pod)).count());
    let progress = progress(observed, newest, ready);
    let live = match progress {
        _ if observed.is_deleted => None,
        Progress::Disabled => None,
        Progress::Live => Some(observed.generation),
        _ => observed.live,
    };
    // Who takes the policy away means the webhook too, whoever holds it.
    let is_held = observed.is_held && !observed.is_deleted && progress != Progress::Disabled;
    let mut decision = Decision {
        create: newest.is_none() && !observed.is_deleted,
        enable: Vec::new(),
        disable: Vec::new(),
        delete: Vec::new(),
        live,
        is_held,
        progress,
        ready,
        total: observed.pods.len(),
        is_gone: observed.is_deleted && observed.live.is_none() && observed.revisions.is_empty(),
        look_again: None,
    };
    let patience = if observed.is_deleted { DELETE_AFTER } else { observed.retire_after };
    let mut history = Vec::new();
    for revision in &observed.revisions {
        let generation = revision.generation;
        let is_wanted = observed.is_enabled && !observed.is_deleted && generation == observed.generation;
        if is_wanted || live == Some(generation) {
            if !revision.is_enabled {
                decision.enable.push(generation);
            }
            continue;
        }
        // The one that answers now stays until the webhook has pointed elsewhere for a while.
        let left = match revision.replaced_for {
            _ if observed.live == Some(generation) => Some(patience),
            Some(since) => patience.checked_sub(since).filter(|left| !left.is_zero()),
            None => None,
        };
        match left {
            Some(left) => {
                decision.look_again = Some(decision.look_again.map_or(left, |other| other.min(left)));
            }
            None if observed.is_deleted => decision.delete.push(generation),
            None => {
                if revision.is_enabled {
                    decision.disable.push(generation);
                }
                if generation != observed.generation {
                    history.push(generation);
                }
            }
        }
    }
    history.sort_unstable_by(|a, b| b.cmp(a));
    decision.delete.extend(history.into_iter().skip(observed.history_limit));
    decision.disable.retain(|generation| !decision.delete.contains(generation));
    decision
}

fn progress(observed: &Observed, newest: Option<&Revision>, ready: usize) -> Progress {
    let Some(revision) = newest else { return Progress::Unscheduled };
    if !observed.is_enabled {
        return Progress::Disabled;
    }
    match &revision.initialized {
        // What answers already goes on, whatever happens to its preparation.
        _ if observed.live == Some(revision.generation) => return Progress::Live,
        None => return Progress::Initializing,
        Some(Err(failure)) => return Progress::InitializationFailed(failure.clone()),
        Some(Ok(())) => {}
    }
    if observed.pods.is_empty() {
        return Progress::NoReplicas;
    }
    if ready == observed.pods.len() {
        return if observed.is_held { Progress::Held } else { Progress::Live };
    }
    let failed = failed(&revision.replicas, &observed.pods);
    if failed.is_empty() { Progress::Loading } else { Progress::LoadingFailed(failed) }
}

/// The pods that say that they cannot serve it, and why.
pub(crate) fn failed(replicas: &[Replica], pods: &[Pod]) -> Vec<(String, Failure)> {
    let failed = pods.iter().filter_map(|pod| match result(replicas, pod) {
        Some(Err(failure)) => Some((pod.name.clone(), failure.clone())),
        _ => None,
    });
    failed.collect()
}

fn serves(revision: &Revision, pod: &Pod) -> bool {
    matches!(result(&revision.replicas, pod), Some(Ok(())))
}

/// What this pod, and not one of the same name before it, says.
pub(crate) fn result<'a>(replicas: &'a [Replica], pod: &Pod) -> Option<&'a Result<(), Failure>> {
    replicas.iter().find(|replica| replica.pod == *pod).and_then(|replica| replica.result.as_ref())
}

#[cfg(test)]
mod tests;
