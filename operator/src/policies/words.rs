//! The words of conditions and Events for the two kinds of policies: those that decide about requests, and those that configure components.

use proviso_core::rollout::{Decision, Progress};
use proviso_crds::{ConditionState as State, ConditionType, Conditions as _, PolicySpec, reasons};

use crate::configurations::VALID;
use crate::revisions::Revision;

/// The effect of a live generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The generation decides about requests.
    Requests,
    /// Components get the generation.
    Components,
}

impl Effect {
    pub fn of_spec(spec: &PolicySpec) -> Self {
        Self::of(spec.configuration.is_none())
    }

    pub fn of_revision(revision: &Revision) -> Self {
        Self::of(!revision.is_configuration())
    }

    /// Returns the effect of a policy. `needs_replicas` is true if replicas of a policy server evaluate it.
    pub fn of(needs_replicas: bool) -> Self {
        if needs_replicas { Self::Requests } else { Self::Components }
    }

    /// Returns the words about the generation that is live. `newest` is the newest generation.
    pub fn live(self, live: Option<i64>, newest: i64) -> String {
        match (self, live) {
            (_, Some(live)) if live != newest => self.goes_on(live),
            (Self::Requests, Some(_)) => "requests are answered by it".to_owned(),
            (Self::Components, Some(_)) => "components get it".to_owned(),
            (_, None) => self.none().to_owned(),
        }
    }

    /// Returns the words about an older generation that is still live.
    pub fn goes_on(self, live: i64) -> String {
        match self {
            Self::Requests => format!("generation {live} goes on answering"),
            Self::Components => format!("components go on getting generation {live}"),
        }
    }

    /// Returns the words about a policy of which no generation is live.
    pub fn none(self) -> &'static str {
        match self {
            Self::Requests => "no generation answers requests",
            Self::Components => "components get no generation",
        }
    }

    /// Returns the note of the Event about a generation that became live.
    pub fn became_live(self, live: i64) -> String {
        match self {
            Self::Requests => format!("generation {live} answers requests"),
            Self::Components => format!("components get generation {live}"),
        }
    }

    /// Returns the note of the Event about a policy of which no generation is live any more.
    pub fn ended(self) -> &'static str {
        match self {
            Self::Requests => "requests are no longer decided by this policy",
            Self::Components => "the policy is removed from components",
        }
    }

    /// Returns the message of the mark on a live revision.
    pub fn marked_live(self) -> &'static str {
        match self {
            Self::Requests => "requests are answered by this revision",
            Self::Components => "components get this revision",
        }
    }

    /// Returns the message of the mark on a revision that was replaced.
    pub fn marked_replaced(self) -> &'static str {
        match self {
            Self::Requests => "requests are answered by another revision, or by none",
            Self::Components => "components get another revision, or none",
        }
    }
}

/// Returns the states of the conditions `Scheduled`, `Initialized`, `Ready` and `Live` of a policy that configures components. `newest` is
/// the revision of its newest generation, and `live` are the words about the generation that is live.
pub(super) fn configuration_states(decision: &Decision, newest: Option<&Revision>, live: &str) -> [State; 4] {
    let scheduled = || State::yes(reasons::REVISION_CREATED, "there is a revision of this generation");
    let not_yet = |reason: proviso_core::Reason| State::no(reason, format!("not yet; {live}"));
    match &decision.progress {
        Progress::Refused(failure) => [
            failure.clone().into(),
            State::unknown(failure.reason.clone(), "the generation is not scheduled"),
            State::no(failure.reason.clone(), "the generation is not scheduled"),
            not_yet(failure.reason.clone()),
        ],
        Progress::InitializationFailed(failure) => [
            scheduled(),
            failure.clone().into(),
            State::no(reasons::NOT_INITIALIZED, "it is not valid: components do not get it"),
            not_yet(reasons::NOT_INITIALIZED),
        ],
        Progress::Disabled => [
            scheduled(),
            State::unknown(reasons::DISABLED, "spec.enabled is false"),
            State::no(reasons::DISABLED, "spec.enabled is false"),
            State::no(reasons::DISABLED, "spec.enabled is false: the policy is removed from components"),
        ],
        Progress::Live => [
            scheduled(),
            State::yes(reasons::VALIDATED, VALID),
            State::yes(reasons::DELIVERABLE, "PolicySubscriptions that select it get it"),
            State::yes(reasons::LIVE, live),
        ],
        // The other kinds of progress are about replicas and webhooks.
        _ => {
            let known = newest.and_then(|it| it.status.conditions.condition(ConditionType::Initialized));
            let failed = known.filter(|known| known.reason == reasons::VALIDATION_FAILED);
            let (reason, message) = match failed {
                Some(failed) => (reasons::VALIDATION_FAILED, failed.message.as_str()),
                None => (reasons::PREPARING, "the operator validates it"),
            };
            [
                scheduled(),
                State::unknown(reason.clone(), message),
                State::no(reason.clone(), "it is not validated yet"),
                not_yet(reason),
            ]
        }
    }
}

/// Returns the state of the condition `Ready` of a revision that configures components.
pub(super) fn configuration_ready(revision: &Revision) -> State {
    let initialized = revision.status.conditions.condition(ConditionType::Initialized);
    match initialized.map(|it| it.status.as_str()) {
        Some("True") => State::yes(reasons::DELIVERABLE, "PolicySubscriptions that select it get it while it is live"),
        Some("False") => State::no(reasons::NOT_INITIALIZED, "it is not valid: components do not get it"),
        _ => State::no(reasons::PREPARING, "it is not validated yet"),
    }
}
