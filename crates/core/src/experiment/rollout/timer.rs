//! States of an experiment that end after a time limit. The operator measures them by its own clock, so that clocks of clients, which
//! may be wrong, neither shorten nor extend them.

use std::time::Duration;

use super::candidates::SortedCandidates;
use super::change::{is_failing, waits_for_retry};
use super::{Observed, Progress};

/// The time that a commit may take, from the moment at which the operator has first observed it. A commit that takes longer counts as
/// abandoned.
pub const COMMIT_INTENT_TIMEOUT: Duration = Duration::from_mins(1);
/// The time for which replicas may be missing, or may fail to load the candidate, before the start of a preview has failed.
pub const START_FAILURE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time after which an experiment with `autoStart` starts again if its start has failed for a reason that the operator cannot
/// observe.
pub const RETRY_INTERVAL: Duration = Duration::from_mins(5);
/// The time that a stop waits for the final counts of the replicas.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// A state that ends after a time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The commit with this id is in progress.
    Commit(String),
    /// The start with this start time fails, for a reason that may pass.
    StartFailure(String),
    /// The start with this start time has failed, and is repeated.
    Retry(String),
    /// Replicas have not written their final counts of the candidate with this name yet.
    Stop(String),
}

impl Timer {
    /// Returns the time limit.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        match self {
            Self::Commit(_) => COMMIT_INTENT_TIMEOUT,
            Self::StartFailure(_) => START_FAILURE_TIMEOUT,
            Self::Retry(_) => RETRY_INTERVAL,
            Self::Stop(_) => STOP_TIMEOUT,
        }
    }
}

/// Returns the timers that run now.
pub(super) fn timers(observed: &Observed, progress: &Progress, candidates: &SortedCandidates<'_>) -> Vec<Timer> {
    if observed.is_deleted {
        return Vec::new();
    }
    let commit = observed.commit.iter().filter(|_| !observed.is_committed());
    let commit = commit.map(|commit| Timer::Commit(commit.id.clone()));
    let failing = observed.active_session().filter(|session| is_failing(session, progress));
    let failing = failing.map(|session| Timer::StartFailure(session.start.clone()));
    let retry = waits_for_retry(observed).map(|session| Timer::Retry(session.start.clone()));
    let stopping = candidates.disable.iter().chain(&candidates.waiting);
    let stopping = stopping.map(|candidate| Timer::Stop(candidate.name.clone()));
    commit.chain(failing).chain(retry).chain(stopping).collect()
}
