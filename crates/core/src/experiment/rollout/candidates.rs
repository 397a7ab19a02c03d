//! The candidate revisions of an experiment: the one that it needs, and the steps that end the others. A preview stops in two steps, so
//! that no evaluation is lost: replicas first stop evaluating the candidate and write their final counts, then it is deleted.

use super::{Acceptance, Candidate, CandidateSession, Observed, Timer};
use crate::rollout::{Pod, result};

/// The candidate that an experiment needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCandidate {
    pub session: CandidateSession,
    /// True if the candidate is previewed. False if it is only prepared, for a commit.
    pub is_enabled: bool,
}

impl DesiredCandidate {
    fn is_met_by(&self, candidate: &Candidate) -> bool {
        let Some(session) = &candidate.session else { return false };
        if self.is_enabled {
            // A candidate that is being stopped does not become the candidate of a later start within the same second.
            return candidate.is_enabled && *session == self.session;
        }
        // A commit needs a prepared candidate of this generation, whatever it was created for.
        session.generation == self.session.generation && session.policy == self.session.policy
    }
}

/// Candidates, sorted by the next step.
#[derive(Debug, Default)]
pub(super) struct SortedCandidates<'a> {
    /// The candidate that the experiment needs.
    pub current: Option<&'a Candidate>,
    /// Candidates that replicas must stop evaluating.
    pub disable: Vec<&'a Candidate>,
    /// Candidates that are disabled, but whose final counts are missing.
    pub waiting: Vec<&'a Candidate>,
    /// Candidates whose final counts must be written to the status before they are deleted.
    pub delete_stopped: Vec<&'a Candidate>,
    /// Candidates to delete at once.
    pub delete: Vec<&'a Candidate>,
}

impl SortedCandidates<'_> {
    /// Returns true if a preview has not stopped yet.
    pub fn is_stopping(&self) -> bool {
        !(self.disable.is_empty() && self.waiting.is_empty() && self.delete_stopped.is_empty())
    }
}

impl Candidate {
    /// Returns true if the candidate was created for a preview, and not only for a commit.
    fn is_of_preview(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.start.is_empty())
    }

    /// Returns true if none of the pods has more counts of this disabled candidate.
    pub(super) fn has_final_counts(&self, pods: &[Pod]) -> bool {
        let is_stopped = |pod: &Pod| {
            // An older version removes its report of a disabled candidate. A pod that cannot load the candidate has no counts.
            let has_no_report = !self.replicas.iter().any(|replica| replica.pod == *pod);
            has_no_report || self.stopped.contains(pod) || matches!(result(&self.replicas, pod), Some(Err(_)))
        };
        // A candidate that is not prepared is loaded by no replica.
        self.initialized != Some(Ok(())) || pods.iter().all(is_stopped)
    }
}

/// Returns the candidate that the experiment needs: for the active preview, or else for a commit in progress. A commit needs only the
/// permission of the policy server: it does not preview the experiment.
pub(super) fn desired(observed: &Observed, acceptance: Acceptance) -> Option<DesiredCandidate> {
    if observed.is_deleted || observed.is_committed() {
        return None;
    }
    let candidate = |start: String| {
        let policy = observed.policy.clone()?;
        Some(CandidateSession { generation: observed.generation, policy, start })
    };
    if let Some(session) = observed.active_session().filter(|_| acceptance == Acceptance::Accepted) {
        return Some(DesiredCandidate { session: candidate(session.start.clone())?, is_enabled: true });
    }
    observed.commit.as_ref().filter(|commit| commit.generation == observed.generation && !observed.is_refused)?;
    Some(DesiredCandidate { session: candidate(String::new())?, is_enabled: false })
}

/// Sorts the candidates by the next step.
pub(super) fn sort<'a>(observed: &'a Observed, desired: Option<&DesiredCandidate>) -> SortedCandidates<'a> {
    let mut sorted = SortedCandidates::default();
    for candidate in &observed.candidates {
        let is_current = sorted.current.is_none() && desired.is_some_and(|desired| desired.is_met_by(candidate));
        if is_current {
            sorted.current = Some(candidate);
            if desired.is_some_and(|desired| desired.is_enabled) {
                continue;
            }
        } else if observed.is_deleted || desired.is_some() || !candidate.is_of_preview() {
            // The counts of these candidates are not reported any more, or there are none.
            sorted.delete.push(candidate);
            continue;
        }
        let has_more_counts = candidate.is_of_preview() && !candidate.has_final_counts(&observed.pods);
        if candidate.is_enabled {
            sorted.disable.push(candidate);
        } else if has_more_counts && !observed.is_over(&Timer::Stop(candidate.name.clone())) {
            sorted.waiting.push(candidate);
        } else if !is_current {
            sorted.delete_stopped.push(candidate);
        }
    }
    sorted
}

/// Returns the names of candidates.
pub(super) fn names(candidates: &[&Candidate]) -> Vec<String> {
    candidates.iter().map(|candidate| candidate.name.clone()).collect()
}
