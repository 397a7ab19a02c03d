//! Changes of the preview state: starts and suspensions by the operator. Callers start and stop previews by themselves.

use std::time::Duration;

use super::{Acceptance, Observed, Progress, Session, Timer};

/// The time before the end of a preview at which its status says when it ends. For a preview that lives for less than two days: half of
/// its life.
pub const EXPIRY_NOTICE: Duration = Duration::from_hours(24);

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

/// The reason why a preview is suspended, as far as it decides about another start by `autoStart`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A caller stopped the preview, or its time to live has passed. The preview stays suspended until the experiment changes.
    Lasting,
    /// The experiment was not accepted.
    NotAccepted,
    /// No replica was Ready.
    NoReplicas,
    /// The start failed for another reason.
    Failed,
}

/// The end of an active preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The time until the preview stops by itself; zero if it must stop now.
    pub left: Duration,
    /// The time from the start of the preview until then.
    pub ttl: Duration,
}

impl Expiry {
    /// Returns the time before the end at which the status announces the end.
    #[must_use]
    pub fn notice(&self) -> Duration {
        EXPIRY_NOTICE.min(self.ttl / 2)
    }
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
    if session.expiry.is_some_and(|expiry| expiry.left.is_zero()) {
        return Some(Suspension::Expired);
    }
    let has_failed = match progress {
        // Without a policy, nothing can be previewed, also not a session that was loaded before.
        Progress::NotAccepted => true,
        Progress::InitializationFailed(_) => !session.was_loaded,
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
    match session.stop_reason {
        StopReason::Lasting => false,
        StopReason::NotAccepted => true,
        StopReason::NoReplicas => !observed.pods.is_empty(),
        StopReason::Failed => observed.is_over(&Timer::Retry(session.start.clone())),
    }
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
    expiry(observed).is_some_and(|expiry| expiry.left <= expiry.notice())
}

/// Returns the time until the end of the preview must be announced, or until the end; `None` if it does not end by itself.
pub(super) fn expiry_due(observed: &Observed) -> Option<Duration> {
    let expiry = expiry(observed)?;
    let until_notice = expiry.left.saturating_sub(expiry.notice());
    let due = if until_notice.is_zero() { expiry.left } else { until_notice };
    Some(due).filter(|due| !due.is_zero())
}

fn expiry(observed: &Observed) -> Option<Expiry> {
    observed.active_session().filter(|_| !observed.is_deleted)?.expiry
}
