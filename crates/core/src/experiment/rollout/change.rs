//! Changes of the preview state: starts and suspensions by the operator. Callers start and stop previews by themselves.

use std::time::Duration;

use super::{Acceptance, Observed, Progress, Session, Timer};
use crate::experiment::preview::{Expiry, Obstacle, StopReason};

/// A change of the preview state (AIP-236).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Start,
    Suspend(Suspension),
}

/// The cause for which the operator suspends a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspension {
    /// The experiment changed since its session started.
    Updated,
    /// The time to live of the preview has passed.
    Expired,
    /// The preview cannot run: [`Decision::progress`](super::Decision::progress) has the cause.
    Failed,
}

/// Returns the change that the operator must write.
pub(super) fn of(observed: &Observed, acceptance: Acceptance, progress: &Progress) -> Option<Change> {
    if observed.is_deleted || observed.is_committed() {
        return None;
    }
    if let Some(session) = observed.active_session() {
        return suspension(observed, session, progress).map(Change::Suspend);
    }
    if observed.auto_start && acceptance == Acceptance::Accepted && may_start(observed) {
        return Some(Change::Start);
    }
    // An update of an ACTIVE experiment suspends the preview (AIP-236).
    observed.session.as_ref().filter(|session| session.is_active).map(|_| Change::Suspend(Suspension::Updated))
}

fn suspension(observed: &Observed, session: &Session, progress: &Progress) -> Option<Suspension> {
    if session.expiry.is_some_and(|expiry| expiry.is_over()) {
        return Some(Suspension::Expired);
    }
    let has_failed = match progress {
        Progress::NotAccepted => Obstacle::NotAccepted.suspends(session.was_loaded),
        Progress::InitializationFailed(_) => Obstacle::NotPrepared.suspends(session.was_loaded),
        progress => is_failing(session, progress) && observed.is_over(&Timer::StartFailure(session.start.clone())),
    };
    has_failed.then_some(Suspension::Failed)
}

/// Returns true if the start fails for a reason that may pass. After every replica has loaded the candidate, replicas that restart or
/// fail do not suspend the preview.
pub(super) fn is_failing(session: &Session, progress: &Progress) -> bool {
    !session.was_loaded && matches!(progress, Progress::NoReplicas | Progress::LoadingFailed(_))
}

/// Returns true if `autoStart` starts an accepted experiment that is not previewed.
fn may_start(observed: &Observed) -> bool {
    let Some(session) = observed.session.as_ref().filter(|session| session.generation == observed.generation) else {
        return true;
    };
    let is_cause_gone = match session.stop_reason {
        StopReason::Lasting | StopReason::Updated | StopReason::NotAccepted => true,
        StopReason::NoReplicas => !observed.pods.is_empty(),
        StopReason::Failed => observed.is_over(&Timer::Retry(session.start.clone())),
    };
    is_cause_gone && session.stop_reason.permits_restart()
}

/// Returns the session whose failed start `autoStart` repeats after a while.
pub(super) fn waits_for_retry(observed: &Observed) -> Option<&Session> {
    let session = observed.session.as_ref().filter(|_| observed.auto_start)?;
    let is_waiting =
        !session.is_active && session.generation == observed.generation && session.stop_reason == StopReason::Failed;
    is_waiting.then_some(session)
}

/// Returns true if the preview is active, and its end must be announced.
pub(super) fn expires_soon(observed: &Observed) -> bool {
    expiry(observed).is_some_and(|expiry| expiry.is_soon())
}

/// Returns the time until the end of the preview must be announced, or until the end; `None` if it does not end by itself.
pub(super) fn expiry_due(observed: &Observed) -> Option<Duration> {
    expiry(observed)?.next_change()
}

fn expiry(observed: &Observed) -> Option<Expiry> {
    observed.active_session().filter(|_| !observed.is_deleted)?.expiry
}
