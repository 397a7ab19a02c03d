//! The progress of a preview, by the reports of the leader and of the replicas.

use super::{Acceptance, Candidate, DesiredCandidate, Observed};
use crate::failure::Failure;
use crate::rollout::failed;

/// The progress of the preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    NotAccepted,
    NotStarted,
    /// The preview is suspended, but replicas may still evaluate requests, or have not written their final counts.
    Stopping,
    Suspended,
    /// The leader prepares the candidate, or the operator validates it if it needs no replicas, or the candidate does not exist yet.
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

/// The preparation of the candidate by the leader of the policy server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Initialization {
    /// The experiment has no candidate, because it is neither previewed nor committed.
    NotNeeded,
    /// The leader prepares the candidate, or the candidate does not exist yet.
    Running,
    Prepared,
    Failed(Failure),
}

/// Returns the progress. `previewed` is the candidate of the active preview, and `is_everywhere` is true if every Ready pod has loaded
/// it, or if it needs no pods.
pub(super) fn of(
    observed: &Observed,
    acceptance: Acceptance,
    previewed: Option<&Candidate>,
    is_everywhere: bool,
    is_stopping: bool,
) -> Progress {
    if observed.active_session().is_none() {
        return match observed.session {
            Some(_) if is_stopping => Progress::Stopping,
            Some(_) => Progress::Suspended,
            None if acceptance == Acceptance::Accepted => Progress::NotStarted,
            None => Progress::NotAccepted,
        };
    }
    if acceptance != Acceptance::Accepted {
        return Progress::NotAccepted;
    }
    let Some(candidate) = previewed else { return Progress::Initializing };
    match &candidate.initialized {
        Some(Err(failure)) => Progress::InitializationFailed(failure.clone()),
        // Without replicas there is no leader that could prepare the candidate.
        _ if observed.needs_replicas && observed.pods.is_empty() => Progress::NoReplicas,
        None => Progress::Initializing,
        Some(Ok(())) if is_everywhere => Progress::Previewing,
        Some(Ok(())) => match failed(&candidate.replicas, &observed.pods) {
            failed if failed.is_empty() => Progress::Loading,
            failed => Progress::LoadingFailed(failed),
        },
    }
}

/// Returns the state of the preparation. `current` is the candidate that meets `desired`.
pub(super) fn initialization(desired: Option<&DesiredCandidate>, current: Option<&Candidate>) -> Initialization {
    match current.map(|candidate| &candidate.initialized) {
        None if desired.is_none() => Initialization::NotNeeded,
        None | Some(None) => Initialization::Running,
        Some(Some(Ok(()))) => Initialization::Prepared,
        Some(Some(Err(failure))) => Initialization::Failed(failure.clone()),
    }
}
