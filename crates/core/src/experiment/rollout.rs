//! What is to be done about one experiment in a cluster: whether it is previewed, which candidate revision and which webhook
//! there are for it. A function of what was observed, without a clock and without a cluster.

use std::time::Duration;

use super::MAX_EXPERIMENTS;
use crate::failure::Failure;
use crate::rollout::{Pod, Replica, failed, result};

/// How long a commit may take between saying that it is about to be made and writing the policy. Who takes longer is taken
/// for dead.
pub const COMMIT_WITHIN: Duration = Duration::from_mins(1);

/// One experiment, its policy, and what was made for it.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Observed {
    /// `metadata.generation`.
    pub generation: i64,
    pub is_deleted: bool,
    pub auto_start: bool,
    /// None before previewing was started for the first time.
    pub session: Option<Session>,
    /// None if there is no such policy, or not any more.
    pub policy: Option<Policy>,
    /// How many older experiments the policy has.
    pub older: usize,
    /// Whether the policy says that it is this generation of the experiment.
    pub is_committed: bool,
    /// For how long somebody has been about to commit it.
    pub intent: Option<Duration>,
    /// Whether every request about which it says anything comes with a call of the live policy.
    pub rides: bool,
    /// In any order.
    pub candidates: Vec<Candidate>,
    pub has_webhook: bool,
    /// Of the policy's policy server.
    pub pods: Vec<Pod>,
}

/// Previewing, as it was started and stopped last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub is_active: bool,
    /// The generation of the experiment that was started last.
    pub generation: i64,
    /// When, as a text: tells a session from the one before it.
    pub start: String,
}

/// The policy that it is an experiment of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub uid: String,
    /// The policy server that answers for it.
    pub server: String,
}

/// A revision of the experiment.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Of the object.
    pub name: String,
    /// Of the experiment. None if nothing of it can be read.
    pub made_for: Option<MadeFor>,
    /// What the leader found; none while it is at work.
    pub initialized: Option<Result<(), Failure>>,
    pub replicas: Vec<Replica>,
}

/// What a candidate was made for: for anything else there is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeFor {
    pub generation: i64,
    pub policy: Policy,
    /// [`Session::start`]
    pub start: String,
}

/// What is to be done, and what is to be said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a step of its own")]
pub struct Decision {
    /// Whether the experiment itself goes, because it was committed.
    pub remove: bool,
    /// Whether who was about to commit it has not.
    pub forget_intent: bool,
    /// Whether previewing starts or stops now. The rest is decided when that is written.
    pub change: Option<Change>,
    /// Whether there is to be a webhook of its own.
    pub webhook: bool,
    /// Candidates that go, by name.
    pub delete: Vec<String>,
    /// Whether a candidate is needed.
    pub create: bool,
    pub acceptance: Acceptance,
    pub progress: Progress,
    /// How many of the Ready pods have loaded it.
    pub ready: usize,
    pub total: usize,
    /// Whether nothing of a deleted experiment is left.
    pub is_gone: bool,
    /// When time alone changes the decision.
    pub look_again: Option<Duration>,
}

/// A change of the state (AIP-236).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Start,
    /// What is previewed is not what the experiment is now.
    Suspend,
}

/// Whether it may be previewed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    Accepted,
    PolicyNotFound,
    TooMany,
}

/// How far previewing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    NotAccepted,
    NotStarted,
    Suspended,
    /// The leader is at work, or about to be.
    Initializing,
    InitializationFailed(Failure),
    /// No pod of the policy server is Ready.
    NoReplicas,
    /// Replicas load it.
    Loading,
    /// These pods cannot load it; the others preview.
    LoadingFailed(Vec<(String, Failure)>),
    Previewing,
}

/// Decides.
#[must_use]
pub fn decide(observed: &Observed) -> Decision {
    let acceptance = match &observed.policy {
        None => Acceptance::PolicyNotFound,
        Some(_) if observed.older >= MAX_EXPERIMENTS => Acceptance::TooMany,
        Some(_) => Acceptance::Accepted,
    };
    let wanted = wanted(observed, acceptance);
    let current = observed.candidates.iter().find(|it| wanted.is_some() && it.made_for == wanted);
    let ready = current.map_or(0, |candidate| {
        observed.pods.iter().filter(|pod| matches!(result(&candidate.replicas, pod), Some(Ok(())))).count()
    });
    let is_everywhere = !observed.pods.is_empty() && ready == observed.pods.len();
    let stale = observed.candidates.iter().filter(|it| wanted.is_none() || it.made_for != wanted);
    let is_abandoned = observed.intent.is_some_and(|age| age >= COMMIT_WITHIN);
    Decision {
        remove: observed.is_committed && !observed.is_deleted,
        forget_intent: is_abandoned && !observed.is_committed && !observed.is_deleted,
        change: change(observed, acceptance),
        // Once it is there, a replica that comes later takes nothing away.
        webhook: current.is_some() && !observed.rides && (observed.has_webhook || is_everywhere),
        delete: stale.map(|candidate| candidate.name.clone()).collect(),
        create: wanted.is_some() && current.is_none(),
        acceptance,
        progress: progress(observed, acceptance, current, is_everywhere),
        ready,
        total: observed.pods.len(),
        is_gone: observed.is_deleted && observed.candidates.is_empty() && !observed.has_webhook,
        look_again: observed.intent.filter(|_| !is_abandoned).map(|age| COMMIT_WITHIN.saturating_sub(age)),
    }
}

/// What there is to be a candidate for.
fn wanted(observed: &Observed, acceptance: Acceptance) -> Option<MadeFor> {
    let is_over = observed.is_deleted || observed.is_committed || acceptance != Acceptance::Accepted;
    let session = observed.session.as_ref().filter(|it| !is_over && it.is_active);
    let session = session.filter(|session| session.generation == observed.generation)?;
    Some(MadeFor { generation: session.generation, policy: observed.policy.clone()?, start: session.start.clone() })
}

fn change(observed: &Observed, acceptance: Acceptance) -> Option<Change> {
    if observed.is_deleted || observed.is_committed {
        return None;
    }
    let session = observed.session.as_ref();
    let is_of_this = session.is_some_and(|session| session.generation == observed.generation);
    if is_of_this {
        return None;
    }
    if observed.auto_start && acceptance == Acceptance::Accepted {
        return Some(Change::Start);
    }
    // An update of an ACTIVE experiment suspends it.
    session.filter(|session| session.is_active).map(|_| Change::Suspend)
}

fn progress(observed: &Observed, acceptance: Acceptance, current: Option<&Candidate>, is_everywhere: bool) -> Progress {
    if acceptance != Acceptance::Accepted {
        return Progress::NotAccepted;
    }
    let is_of_this = |session: &&Session| session.generation == observed.generation;
    match observed.session.as_ref() {
        None => return Progress::NotStarted,
        Some(session) if !session.is_active || !is_of_this(&session) => return Progress::Suspended,
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
