//! Decides the next steps of one experiment in a cluster: start or suspend the preview, create, disable or delete candidate
//! revisions, keep or remove the experiment's webhook, complete or abort a commit. The decision is a pure function of the observed
//! state.

mod candidates;
mod change;
mod progress;
mod timer;

use std::time::Duration;

use super::MAX_EXPERIMENTS;
use super::preview::{Expiry, StopReason};
use crate::failure::Failure;
use crate::rollout::{Pod, Replica, result};

pub use candidates::DesiredCandidate;
pub use change::{Change, Suspension};
pub use progress::{Initialization, Progress};
pub use timer::{COMMIT_INTENT_TIMEOUT, RETRY_INTERVAL, START_FAILURE_TIMEOUT, STOP_TIMEOUT, Timer};

/// The observed state of one experiment, its policy, its candidates and its webhook.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Observed {
    /// `metadata.generation`.
    pub generation: i64,
    pub is_deleted: bool,
    /// True if replicas of a policy server evaluate the candidate. False for an experiment on a policy that configures components: its
    /// preview runs as soon as its candidate is initialized.
    pub needs_replicas: bool,
    pub auto_start: bool,
    /// The last preview session; `None` before the first start.
    pub session: Option<Session>,
    /// The policy of the experiment; `None` if it does not exist, is being deleted, or is malformed.
    pub policy: Option<Policy>,
    /// True if the policy exists, but cannot be read, and no generation of it is live.
    pub is_policy_malformed: bool,
    /// The number of older experiments of the same policy.
    pub older: usize,
    /// True if the policy server does not permit the experiment, or its namespace has too many.
    pub is_refused: bool,
    /// The commit that is in progress; `None` if there is none.
    pub commit: Option<Commit>,
    /// True if the experiment shares the policy's webhook: each request that the experiment covers also reaches the live policy.
    pub shares_webhook: bool,
    /// The candidate revisions of the experiment, in any order.
    pub candidates: Vec<Candidate>,
    /// True if the experiment has its own webhook.
    pub has_webhook: bool,
    /// The Ready pods of the policy's policy server. Empty if the experiment needs no replicas.
    pub pods: Vec<Pod>,
    /// The times for which the operator has observed the timers of its last decision ([`Decision::timers`]). A timer that is missing
    /// begins now.
    pub elapsed: Vec<(Timer, Duration)>,
}

/// The last preview session of the experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub is_active: bool,
    /// The generation of the experiment that the session previews.
    pub generation: i64,
    /// The start time as text. It distinguishes the session from earlier sessions, and is not empty.
    pub start: String,
    /// True if every Ready replica has loaded the candidate of this session at some time. True also for a session that an older
    /// version started, because that version did not record the time.
    pub was_loaded: bool,
    /// The time until the preview stops by itself; `None` if it does not.
    pub expiry: Option<Expiry>,
    /// The reason why the preview is suspended. Without a meaning while the session is active.
    pub stop_reason: StopReason,
}

/// A commit of the experiment that is in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The random id of the commit.
    pub id: String,
    /// The generation of the experiment that is committed.
    pub generation: i64,
    /// True if the policy records this commit of this generation of this experiment, and has the spec of the experiment.
    pub is_copied: bool,
}

/// The policy of the experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub uid: String,
    /// The name of the policy server that serves the policy.
    pub server: String,
}

/// A candidate revision of the experiment.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The `metadata.name` of the `PolicyRevision`.
    pub name: String,
    /// The session that the candidate was created for; `None` if the object records no readable session.
    pub session: Option<CandidateSession>,
    /// True if replicas evaluate the candidate. False if it is only prepared, or is being stopped.
    pub is_enabled: bool,
    /// The result of the leader's preparation or, if the experiment needs no replicas, of the operator's validation; `None` while it
    /// runs.
    pub initialized: Option<Result<(), Failure>>,
    pub replicas: Vec<Replica>,
    /// The pods that evaluate the candidate no more and have written their final counts.
    pub stopped: Vec<Pod>,
}

/// The session that a candidate belongs to. Each session needs a candidate of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateSession {
    pub generation: i64,
    pub policy: Policy,
    /// [`Session::start`]; empty if the candidate is only prepared for a commit, and was never previewed.
    pub start: String,
}

/// The next steps of the operator, and the status to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The next step of the commit, if any. The other steps follow when this step is done.
    pub commit: Option<CommitStep>,
    /// The change of the preview state, if any. The other steps follow when this change is written.
    pub change: Option<Change>,
    /// True if the experiment needs its own webhook.
    pub webhook: bool,
    /// The names of the candidates that replicas must stop evaluating.
    pub disable: Vec<String>,
    /// The names of the candidates to delete at once.
    pub delete: Vec<String>,
    /// The names of the candidates to delete after their counts are in the status of the experiment.
    pub delete_stopped: Vec<String>,
    /// The candidate that the operator must create, if any.
    pub create: Option<DesiredCandidate>,
    pub acceptance: Acceptance,
    pub initialization: Initialization,
    pub progress: Progress,
    /// True if the preview is active and stops by itself soon ([`EXPIRY_NOTICE`](super::preview::EXPIRY_NOTICE)).
    pub expires_soon: bool,
    /// The number of Ready pods that have loaded the candidate.
    pub ready: usize,
    /// The number of Ready pods.
    pub total: usize,
    /// True if the experiment is deleted and has no candidates, no webhook and no commit to abort any more.
    pub is_cleaned_up: bool,
    /// The states that end after a time limit. The operator measures, by its own monotonic clock, for how long it has observed each
    /// of them without a break, and forgets the others.
    pub timers: Vec<Timer>,
    /// The time until the decision changes without another event; `None` if only events change it.
    pub requeue_after: Option<Duration>,
}

/// A step that ends a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// The spec is copied to the policy: the experiment must be deleted.
    Complete,
    /// The caller has not completed the commit in time, or the experiment is being deleted. Late writes of the caller must be made to
    /// fail, before the commit is removed from the status of the experiment, and before the experiment goes.
    Abort,
}

/// The result of the checks that must pass before an experiment is previewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    Accepted,
    PolicyNotFound,
    /// The policy cannot be read, and no generation of it is live.
    PolicyMalformed,
    TooMany,
    /// See [`Observed::is_refused`].
    NotPermitted,
}

impl Observed {
    fn acceptance(&self) -> Acceptance {
        match &self.policy {
            None if self.is_policy_malformed => Acceptance::PolicyMalformed,
            None => Acceptance::PolicyNotFound,
            Some(_) if self.older >= MAX_EXPERIMENTS => Acceptance::TooMany,
            Some(_) if self.is_refused => Acceptance::NotPermitted,
            Some(_) => Acceptance::Accepted,
        }
    }

    /// Returns the session that previews the current generation; `None` if no preview is active.
    fn active_session(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| session.is_active && session.generation == self.generation)
    }

    /// Returns whether the spec of the current generation is copied to the policy.
    fn is_committed(&self) -> bool {
        self.commit.as_ref().is_some_and(|commit| commit.is_copied && commit.generation == self.generation)
    }

    fn elapsed(&self, timer: &Timer) -> Duration {
        self.elapsed.iter().find(|(known, _)| known == timer).map_or(Duration::ZERO, |(_, elapsed)| *elapsed)
    }

    fn is_over(&self, timer: &Timer) -> bool {
        self.elapsed(timer) >= timer.limit()
    }
}

/// Decides the next steps of the experiment.
#[must_use]
pub fn decide(observed: &Observed) -> Decision {
    let acceptance = observed.acceptance();
    let desired = candidates::desired(observed, acceptance);
    let sorted = candidates::sort(observed, desired.as_ref());
    let previewed = sorted.current.filter(|_| desired.as_ref().is_some_and(|desired| desired.is_enabled));
    let ready = previewed.map_or(0, |candidate| {
        observed.pods.iter().filter(|pod| matches!(result(&candidate.replicas, pod), Some(Ok(())))).count()
    });
    let is_everywhere = !observed.needs_replicas || (!observed.pods.is_empty() && ready == observed.pods.len());
    let progress = progress::of(observed, acceptance, previewed, is_everywhere, sorted.is_stopping());
    let timers = timer::timers(observed, &progress, &sorted);
    let initialization = progress::initialization(desired.as_ref(), sorted.current);
    let left = timers.iter().map(|timer| timer.limit().saturating_sub(observed.elapsed(timer)));
    let requeue_after = left.filter(|left| !left.is_zero()).chain(change::expiry_due(observed)).min();
    let commit = commit_step(observed);
    let is_gone = observed.candidates.is_empty() && !observed.has_webhook && commit.is_none();
    Decision {
        commit,
        change: change::of(observed, acceptance, &progress),
        // An existing webhook stays when a new replica has not loaded the candidate yet.
        webhook: previewed.is_some() && !observed.shares_webhook && (observed.has_webhook || is_everywhere),
        disable: candidates::names(&sorted.disable),
        delete: candidates::names(&sorted.delete),
        delete_stopped: candidates::names(&sorted.delete_stopped),
        create: desired.filter(|_| sorted.current.is_none()),
        acceptance,
        initialization,
        progress,
        expires_soon: change::expires_soon(observed),
        ready,
        total: observed.pods.len(),
        is_cleaned_up: observed.is_deleted && is_gone,
        timers,
        requeue_after,
    }
}

fn commit_step(observed: &Observed) -> Option<CommitStep> {
    let commit = observed.commit.as_ref()?;
    if observed.is_deleted {
        // A caller that is stalled must not change the policy after the experiment is gone. Without the policy, its write fails
        // anyway. The deletion has increased the generation, so that it does not tell whether the commit is outdated.
        let has_policy = observed.policy.is_some() || observed.is_policy_malformed;
        return (has_policy && !commit.is_copied).then_some(CommitStep::Abort);
    }
    if observed.is_committed() {
        return Some(CommitStep::Complete);
    }
    observed.is_over(&Timer::Commit(commit.id.clone())).then_some(CommitStep::Abort)
}

#[cfg(test)]
mod tests;
