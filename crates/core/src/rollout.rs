//! Decides the next steps of one policy in a cluster: the live generation, and the revisions to create, enable, disable and
//! delete. The decision is a pure function of the observed state. Source: Kubewarden's RFC "Policy Lifecycle".

use std::time::Duration;

use crate::failure::Failure;

/// The time that the revisions of a deleted policy keep answering after the removal of its webhook.
pub const DELETION_GRACE_PERIOD: Duration = Duration::from_secs(10);

/// The observed state of one policy, its webhook, its revisions, and the pods that serve them.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The newest generation: `metadata.generation`.
    pub generation: i64,
    pub is_enabled: bool,
    pub is_deleted: bool,
    /// The generation that the webhook points at; `None` if there is no webhook.
    pub live: Option<i64>,
    /// True if break-glass is active: an administrator controls the webhook, and the operator leaves it unchanged.
    pub is_break_glass: bool,
    /// The revisions of the policy, in any order.
    pub revisions: Vec<Revision>,
    /// The Ready pods of the policy server that the newest generation names.
    pub pods: Vec<Pod>,
    /// The number of revisions that are kept for a rollback, besides those that serve.
    pub history_limit: usize,
    /// The time that the previous generation keeps answering after a switch. API servers learn of a switch at different times.
    pub retire_after: Duration,
}

/// A `PolicyRevision`.
#[derive(Clone, Debug)]
pub struct Revision {
    pub generation: i64,
    pub is_enabled: bool,
    /// The result of the leader's preparation; `None` while the preparation runs.
    pub initialized: Option<Result<(), Failure>>,
    pub replicas: Vec<Replica>,
    /// The time since this generation stopped being live; `None` if it is live or never was.
    pub retired_for: Option<Duration>,
}

/// The report of one replica about a revision.
#[derive(Clone, Debug)]
pub struct Replica {
    pub pod: Pod,
    /// `Ok` if the replica serves the revision, or the reason why it cannot; `None` while the replica loads the revision.
    pub result: Option<Result<(), Failure>>,
}

/// A pod of a policy server that is Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    /// The UID, which distinguishes the pod from an earlier pod of the same name.
    pub uid: String,
}

/// The next steps of the operator, and the status to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the operator must create a revision for the newest generation.
    pub create: bool,
    /// The generations whose revisions replicas must load again.
    pub enable: Vec<i64>,
    /// The generations whose revisions replicas must unload.
    pub disable: Vec<i64>,
    /// The generations whose revisions the operator must delete.
    pub delete: Vec<i64>,
    /// The generation that the webhook must point at; `None` if the webhook must be removed.
    pub live: Option<i64>,
    /// True if the operator must leave the webhook unchanged, because break-glass is active.
    pub is_break_glass: bool,
    pub progress: Progress,
    /// The number of Ready pods that serve the newest generation.
    pub ready: usize,
    /// The number of Ready pods.
    pub total: usize,
    /// True if the policy is deleted and has no revisions and no webhook any more.
    pub is_cleaned_up: bool,
    /// The time until the decision changes without another event; `None` if only events change it.
    pub requeue_after: Option<Duration>,
}

/// The rollout progress of the newest generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The generation has no revision yet.
    Unscheduled,
    /// The leader prepares the revision.
    Initializing,
    InitializationFailed(Failure),
    /// No pod of the policy server is Ready.
    NoReplicas,
    /// The replicas load the revision.
    Loading,
    /// These pods cannot load the revision, so the webhook does not move to it.
    LoadingFailed(Vec<(String, Failure)>),
    /// Each Ready pod serves the revision, but break-glass keeps the webhook on another generation.
    BreakGlass,
    Live,
    Disabled,
}

/// Decides the next steps of the policy.
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
    // A deleted or disabled policy loses its webhook even during break-glass.
    let is_break_glass = observed.is_break_glass && !observed.is_deleted && progress != Progress::Disabled;
    let mut decision = Decision {
        create: newest.is_none() && !observed.is_deleted,
        enable: Vec::new(),
        disable: Vec::new(),
        delete: Vec::new(),
        live,
        is_break_glass,
        progress,
        ready,
        total: observed.pods.len(),
        is_cleaned_up: observed.is_deleted && observed.live.is_none() && observed.revisions.is_empty(),
        requeue_after: None,
    };
    let grace_period = if observed.is_deleted { DELETION_GRACE_PERIOD } else { observed.retire_after };
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
        // A revision keeps answering for the grace period after the webhook moved away from it.
        let remaining = match revision.retired_for {
            _ if observed.live == Some(generation) => Some(grace_period),
            Some(since) => grace_period.checked_sub(since).filter(|remaining| !remaining.is_zero()),
            None => None,
        };
        match remaining {
            Some(remaining) => {
                decision.requeue_after = Some(decision.requeue_after.map_or(remaining, |other| other.min(remaining)));
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
        // The live generation keeps answering even if a later preparation of it fails.
        _ if observed.live == Some(revision.generation) => return Progress::Live,
        None => return Progress::Initializing,
        Some(Err(failure)) => return Progress::InitializationFailed(failure.clone()),
        Some(Ok(())) => {}
    }
    if observed.pods.is_empty() {
        return Progress::NoReplicas;
    }
    if ready == observed.pods.len() {
        return if observed.is_break_glass { Progress::BreakGlass } else { Progress::Live };
    }
    let failed = failed(&revision.replicas, &observed.pods);
    if failed.is_empty() { Progress::Loading } else { Progress::LoadingFailed(failed) }
}

/// Returns the pods that cannot serve the revision, with the reason.
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

/// Returns the report of this pod. Reports of an earlier pod of the same name do not count.
pub(crate) fn result<'a>(replicas: &'a [Replica], pod: &Pod) -> Option<&'a Result<(), Failure>> {
    replicas.iter().find(|replica| replica.pod == *pod).and_then(|replica| replica.result.as_ref())
}

#[cfg(test)]
mod tests;
