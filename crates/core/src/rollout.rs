//! Decides the next steps of one policy in a cluster: the live generation, the webhooks, and the revisions to create, enable,
//! disable and delete. The decision is a pure function of the observed state. Source: Kubewarden's RFC "Policy Lifecycle".

mod marks;
mod progress;
mod webhooks;

use std::time::Duration;

use crate::failure::Failure;

pub use progress::{Progress, REPORT_TIMEOUT};
pub(crate) use progress::{failed, result};
pub use webhooks::{WEBHOOK_OVERLAP, WebhookSteps, webhook_steps};

/// The time that the revisions of a deleted policy keep answering after the removal of its webhook.
pub const DELETION_GRACE_PERIOD: Duration = Duration::from_secs(10);

/// The observed state of one policy, its webhooks, its revisions, and the pods that serve them.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The newest generation: `metadata.generation`.
    pub generation: i64,
    pub is_enabled: bool,
    pub is_deleted: bool,
    /// The reason why no new generation may become live, such as a `PolicyServer` that does not allow the policy; `None` if one may.
    pub refusal: Option<Failure>,
    /// The live generation in the status of the policy; `None` if the status has none.
    pub reported_live: Option<i64>,
    /// The webhooks of the policy: at most one of each kind.
    pub webhooks: Vec<Webhook>,
    /// True if break-glass is active: an administrator controls the webhooks, and the operator leaves them unchanged.
    pub is_break_glass: bool,
    /// The revisions of the policy, in any order.
    pub revisions: Vec<Revision>,
    /// The Ready pods of the policy server that the newest generation names.
    pub pods: Vec<ReadyPod>,
    /// The number of revisions that are kept for a rollback, besides those that serve.
    pub history_limit: usize,
    /// The time that the previous generation keeps answering after a switch. API servers learn of a switch at different times.
    pub retire_after: Duration,
}

/// A webhook configuration of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub kind: WebhookKind,
    /// The generations of this policy that the webhook calls. Empty if its paths name no generation of this policy.
    pub calls: Vec<i64>,
    /// The time since the creation of the configuration.
    pub age: Duration,
}

/// The kind of a webhook configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookKind {
    Validating,
    Mutating,
}

/// A `PolicyRevision`.
#[derive(Clone, Debug)]
pub struct Revision {
    pub generation: i64,
    pub is_enabled: bool,
    /// The result of the leader's preparation; `None` while the preparation runs.
    pub initialized: Option<Result<(), Failure>>,
    /// The time since the last change of `initialized`, or since the creation of the revision.
    pub waiting_for: Duration,
    pub replicas: Vec<Replica>,
    /// The mark on the revision; `None` if no webhook has called it.
    pub mark: Option<Mark>,
    /// The time since the last change of `mark`; zero without a mark.
    pub marked_for: Duration,
    /// The kind of webhook that the revision needs; `None` if the revision cannot be read.
    pub webhook: Option<WebhookKind>,
}

/// The operator's record on a revision: its condition `Live`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The generation is live: the webhook must call it.
    Live,
    /// The generation is not live, but a webhook still calls it.
    Called,
    /// No webhook calls the generation any more.
    Retired,
}

/// The report of one replica about a revision.
#[derive(Clone, Debug)]
pub struct Replica {
    pub pod: Pod,
    /// `Ok` if the replica serves the revision, or the reason why it cannot; `None` while the replica loads the revision.
    pub result: Option<Result<(), Failure>>,
    /// The restriction under which the replica serves the revision; `None` if there is none.
    pub warning: Option<Failure>,
}

/// A pod of a policy server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    /// The UID, which distinguishes the pod from an earlier pod of the same name.
    pub uid: String,
}

/// A pod of a policy server that is Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyPod {
    pub pod: Pod,
    /// The time since the pod became Ready.
    pub ready_for: Duration,
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
    /// The generation that the webhook must call; `None` if the policy must have no webhook.
    pub live: Option<i64>,
    /// The changes of marks to write before the webhooks change.
    pub marks_before: Vec<(i64, Mark)>,
    /// The changes of marks to write after the webhooks have changed. The mark `Retired` begins the grace period.
    pub marks_after: Vec<(i64, Mark)>,
    /// The webhooks to delete, after the webhook of the live generation is applied.
    pub delete_webhooks: Vec<WebhookKind>,
    /// True if the operator must leave the webhooks unchanged, because break-glass is active.
    pub is_break_glass: bool,
    /// The generation that answers requests. During break-glass, it is the generation that the webhooks call, which may differ
    /// from `live`, or `None` if they call no revision of this policy.
    pub answering: Option<i64>,
    pub progress: Progress,
    /// [`Observed::refusal`].
    pub refusal: Option<Failure>,
    /// The number of Ready pods that serve the newest generation.
    pub ready: usize,
    /// The number of Ready pods.
    pub total: usize,
    /// The Ready pods that have reported nothing about the newest generation within [`REPORT_TIMEOUT`].
    pub silent: Vec<String>,
    /// The Ready pods that serve the newest generation with a restriction.
    pub warnings: Vec<(String, Failure)>,
    /// True if the policy is deleted and has no revisions and no webhooks any more.
    pub is_cleaned_up: bool,
    /// The time until the decision changes without another event; `None` if only events change it.
    pub requeue_after: Option<Duration>,
}

impl Observed {
    /// Returns the generation that is live on record.
    ///
    /// The record is the mark on a revision. The highest marked generation counts, because only the newest generation becomes
    /// live. The path of a webhook counts only without a mark, for example after a restore of a backup without statuses: it
    /// must name the generation in the status of the policy or, if it does not, a revision that works.
    #[must_use]
    pub fn live(&self) -> Option<i64> {
        let marked = self.revisions.iter().filter(|revision| revision.mark == Some(Mark::Live));
        let marked = marked.map(|revision| revision.generation).max();
        let reported = || self.reported_live.filter(|generation| self.is_called(*generation));
        let works = |revision: &Revision| revision.is_enabled || revision.initialized == Some(Ok(()));
        let called = || self.called().filter(|generation| self.revision(*generation).is_some_and(works)).max();
        marked.or_else(reported).or_else(called)
    }

    fn revision(&self, generation: i64) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.generation == generation)
    }

    /// Returns the generations that the webhooks call.
    fn called(&self) -> impl Iterator<Item = i64> {
        self.webhooks.iter().flat_map(|webhook| webhook.calls.iter().copied())
    }

    fn is_called(&self, generation: i64) -> bool {
        self.called().any(|called| called == generation)
    }
}

/// Decides the next steps of the policy.
#[must_use]
pub fn decide(observed: &Observed) -> Decision {
    let (recorded, newest) = (observed.live(), observed.revision(observed.generation));
    let ready = newest.map_or(0, |revision| progress::ready(revision, &observed.pods));
    let progress = progress::of(observed, newest, recorded, ready);
    let live = match progress {
        _ if observed.is_deleted => None,
        Progress::Disabled => None,
        Progress::Live => Some(observed.generation),
        _ => recorded,
    };
    // A deleted or disabled policy loses its webhook even during break-glass.
    let is_break_glass = observed.is_break_glass && !observed.is_deleted && progress != Progress::Disabled;
    let webhooks = if is_break_glass { webhooks::unchanged(observed) } else { webhook_steps(observed, live) };
    let (marks_before, marks_after) = marks::changes(observed, live, &webhooks.still_called, is_break_glass);
    let report_due = newest.and_then(|revision| progress::report_due(revision, &observed.pods, &progress));
    let mut decision = Decision {
        create: newest.is_none() && !observed.is_deleted && observed.refusal.is_none(),
        enable: Vec::new(),
        disable: Vec::new(),
        delete: Vec::new(),
        live,
        marks_before,
        marks_after,
        delete_webhooks: webhooks.delete,
        is_break_glass,
        answering: if is_break_glass { called_revision(observed) } else { live },
        silent: newest.map(|revision| progress::silent(revision, &observed.pods)).unwrap_or_default(),
        warnings: newest.map(|revision| progress::warnings(revision, &observed.pods)).unwrap_or_default(),
        progress,
        refusal: observed.refusal.clone(),
        ready,
        total: observed.pods.len(),
        is_cleaned_up: observed.is_deleted && observed.webhooks.is_empty() && observed.revisions.is_empty(),
        requeue_after: webhooks.requeue_after.into_iter().chain(report_due).min(),
    };
    decide_revisions(observed, &webhooks.still_called, &mut decision);
    decision
}

/// Returns the highest generation that a webhook calls and that has a revision.
fn called_revision(observed: &Observed) -> Option<i64> {
    observed.called().filter(|generation| observed.revision(*generation).is_some()).max()
}

/// Decides which revisions to enable, disable and delete. A generation that a webhook calls stays loaded.
fn decide_revisions(observed: &Observed, still_called: &[i64], decision: &mut Decision) {
    let grace_period = if observed.is_deleted { DELETION_GRACE_PERIOD } else { observed.retire_after };
    let mut history = Vec::new();
    for revision in &observed.revisions {
        let generation = revision.generation;
        let is_newest = generation == observed.generation && observed.refusal.is_none();
        let is_wanted = observed.is_enabled && !observed.is_deleted && is_newest;
        if is_wanted || decision.live == Some(generation) || still_called.contains(&generation) {
            if !revision.is_enabled {
                decision.enable.push(generation);
            }
            continue;
        }
        // A revision keeps answering for the grace period after the webhook moved away from it.
        let remaining = match revision.mark {
            _ if observed.is_called(generation) => Some(grace_period),
            Some(Mark::Live | Mark::Called) => Some(grace_period),
            Some(Mark::Retired) => {
                grace_period.checked_sub(revision.marked_for).filter(|remaining| !remaining.is_zero())
            }
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
    let Decision { disable, delete, .. } = decision;
    disable.retain(|generation| !delete.contains(generation));
}

#[cfg(test)]
mod tests;
