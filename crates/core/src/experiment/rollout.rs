//! Decides the next steps of one experiment in a cluster: start or suspend the preview, create or delete candidate revisions,
//! keep or remove the experiment's webhook. The decision is a pure function of the observed state.

use std::time::Duration;

use super::MAX_EXPERIMENTS;
use crate::failure::Failure;
use crate::rollout::{Pod, Replica, failed, result};

/// The maximum age of a commit intent. The API records the intent before it writes the policy; a commit that takes longer
/// counts as abandoned.
pub const COMMIT_INTENT_TIMEOUT: Duration = Duration::from_mins(1);

/// The observed state of one experiment, its policy, its candidates and its webhook.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Observed {
    /// `metadata.generation`.
    pub generation: i64,
    pub is_deleted: bool,
    pub auto_start: bool,
    /// The last preview session; `None` before the first start.
    pub session: Option<Session>,
    /// The policy of the experiment; `None` if it does not exist or is being deleted.
    pub policy: Option<Policy>,
    /// The number of older experiments of the same policy.
    pub older: usize,
    /// True if the policy records this generation of the experiment as committed.
    pub is_committed: bool,
    /// The age of the commit intent; `None` if no commit is in progress.
    pub intent: Option<Duration>,
    /// True if the experiment shares the policy's webhook: each request that the experiment covers also reaches the live policy.
    pub shares_webhook: bool,
    /// The candidate revisions of the experiment, in any order.
    pub candidates: Vec<Candidate>,
    /// True if the experiment has its own webhook.
    pub has_webhook: bool,
    /// The Ready pods of the policy's policy server.
    pub pods: Vec<Pod>,
}

/// The last preview session of the experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub is_active: bool,
    /// The generation of the experiment that the session previews.
    pub generation: i64,
    /// The start time as text. It distinguishes the session from earlier sessions.
    pub start: String,
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
    /// The result of the leader's preparation; `None` while the preparation runs.
    pub initialized: Option<Result<(), Failure>>,
    pub replicas: Vec<Replica>,
}

/// The session that a candidate belongs to. Each session needs a candidate of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateSession {
    pub generation: i64,
    pub policy: Policy,
    /// [`Session::start`]
    pub start: String,
}

/// The next steps of the operator, and the status to report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent step")]
pub struct Decision {
    /// True if the operator must delete the experiment, because it was committed.
    pub remove: bool,
    /// True if the commit intent expired and must be removed.
    pub clear_commit_intent: bool,
    /// The change of the preview state, if any. The other steps follow when this change is written.
    pub change: Option<Change>,
    /// True if the experiment needs its own webhook.
    pub webhook: bool,
    /// The names of the candidates to delete.
    pub delete: Vec<String>,
    /// True if the operator must create a candidate.
    pub create: bool,
    pub acceptance: Acceptance,
    pub progress: Progress,
    /// The number of Ready pods that have loaded the candidate.
    pub ready: usize,
    /// The number of Ready pods.
    pub total: usize,
    /// True if the experiment is deleted and has no candidates and no webhook any more.
    pub is_cleaned_up: bool,
    /// The time until the decision changes without another event; `None` if only events change it.
    pub requeue_after: Option<Duration>,
}

/// A change of the preview state (AIP-236).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Start,
    /// The preview stops, because the experiment changed since its session started.
    Suspend,
}

/// The result of the checks that must pass before an experiment is previewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    Accepted,
    PolicyNotFound,
    TooMany,
}

/// The progress of the preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    NotAccepted,
    NotStarted,
    Suspended,
    /// The leader prepares the candidate, or the candidate does not exist yet.
    Initializing,
    InitializationFailed(Failure),
    /// No pod of the policy server is Ready.
    NoReplicas,
    /// The replicas load the candidate.
    Loading,
    /// These pods cannot load the candidate; the other pods preview it.
    LoadingFailed(Vec<(String, Failure)>),
    Previewing,
}

/// Decides the next steps of the experiment.
#[must_use]
pub fn decide(observed: &Observed) -> Decision {
    let acceptance = match &observed.policy {
        None => Acceptance::PolicyNotFound,
        Some(_) if observed.older >= MAX_EXPERIMENTS => Acceptance::TooMany,
        Some(_) => Acceptance::Accepted,
    };
    let desired = desired_candidate(observed, acceptance);
    let current = observed.candidates.iter().find(|it| desired.is_some() && it.session == desired);
    let ready = current.map_or(0, |candidate| {
        observed.pods.iter().filter(|pod| matches!(result(&candidate.replicas, pod), Some(Ok(())))).count()
    });
    let is_everywhere = !observed.pods.is_empty() && ready == observed.pods.len();
    let stale = observed.candidates.iter().filter(|it| desired.is_none() || it.session != desired);
    let is_abandoned = observed.intent.is_some_and(|age| age >= COMMIT_INTENT_TIMEOUT);
    Decision {
        remove: observed.is_committed && !observed.is_deleted,
        clear_commit_intent: is_abandoned && !observed.is_committed && !observed.is_deleted,
        change: change(observed, acceptance),
        // An existing webhook stays when a new replica has not loaded the candidate yet.
        webhook: current.is_some() && !observed.shares_webhook && (observed.has_webhook || is_everywhere),
        delete: stale.map(|candidate| candidate.name.clone()).collect(),
        create: desired.is_some() && current.is_none(),
        acceptance,
        progress: progress(observed, acceptance, current, is_everywhere),
        ready,
        total: observed.pods.len(),
        is_cleaned_up: observed.is_deleted && observed.candidates.is_empty() && !observed.has_webhook,
        requeue_after: observed.intent.filter(|_| !is_abandoned).map(|age| COMMIT_INTENT_TIMEOUT.saturating_sub(age)),
    }
}

/// Returns the session that needs a candidate; `None` if no preview runs.
fn desired_candidate(observed: &Observed, acceptance: Acceptance) -> Option<CandidateSession> {
    let is_over = observed.is_deleted || observed.is_committed || acceptance != Acceptance::Accepted;
    let session = observed.session.as_ref().filter(|it| !is_over && it.is_active);
    let session = session.filter(|session| session.generation == observed.generation)?;
    Some(CandidateSession {
        generation: session.generation,
        policy: observed.policy.clone()?,
        start: session.start.clone(),
    })
}

fn change(observed: &Observed, acceptance: Acceptance) -> Option<Change> {
    if observed.is_deleted || observed.is_committed {
        return None;
    }
    let session = observed.session.as_ref();
    let is_current = session.is_some_and(|session| session.generation == observed.generation);
    if is_current {
        return None;
    }
    if observed.auto_start && acceptance == Acceptance::Accepted {
        return Some(Change::Start);
    }
    // An update of an ACTIVE experiment suspends the preview (AIP-236).
    session.filter(|session| session.is_active).map(|_| Change::Suspend)
}

fn progress(observed: &Observed, acceptance: Acceptance, current: Option<&Candidate>, is_everywhere: bool) -> Progress {
    if acceptance != Acceptance::Accepted {
        return Progress::NotAccepted;
    }
    let is_current = |session: &&Session| session.generation == observed.generation;
    match observed.session.as_ref() {
        None => return Progress::NotStarted,
        Some(session) if !session.is_active || !is_current(&session) => return Progress::Suspended,
        Some(_) => {}
    }
    let Some(candidate) = current else { return Progress::Initializing };
    match &candidate.initialized {
        None => Progress::Initializing,
        Some(Err(failure)) => Progress::InitializationFailed(failure.clone()),
        Some(Ok(())) if observed.pods.is_empty() => Progress::NoReplicas,
        Some(Ok(())) if is_everywhere => Progress::Previewing,
        Some(Ok(())) => match failed(&candidate.replicas, &observed.pods) {
            failed if failed.is_empty() => Progress::Loading,
            failed => Progress::LoadingFailed(failed),
        },
    }
}

#[cfg(test)]
mod tests;
