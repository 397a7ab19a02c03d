//! The webhooks of a policy. A policy has a validating or a mutating webhook; it has both only while it turns from one kind to
//! the other.

use std::time::Duration;

use super::{Mark, Observed, WebhookKind};

/// The time for which the webhooks of both kinds exist after a policy has turned from validating to mutating, or back. API
/// servers learn of the new webhook at different times, and without the old one they would miss requests until then.
/// [`Observed::retire_after`] counts if it is shorter.
pub const WEBHOOK_OVERLAP: Duration = Duration::from_secs(30);

/// The next steps for the webhooks of a policy, besides the webhook of the live generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookSteps {
    /// The webhooks to delete.
    pub delete: Vec<WebhookKind>,
    /// The generations that the webhooks call that stay unchanged.
    pub still_called: Vec<i64>,
    /// The time until another webhook must be deleted; `None` if only events change the steps.
    pub requeue_after: Option<Duration>,
}

/// Returns the steps that make the webhook of the generation `live` the only one.
#[must_use]
pub fn webhook_steps(observed: &Observed, live: Option<i64>) -> WebhookSteps {
    let Some(live) = live else {
        let delete = observed.webhooks.iter().map(|webhook| webhook.kind).collect();
        return WebhookSteps { delete, ..WebhookSteps::default() };
    };
    let revision = observed.revision(live);
    let Some(kind) = revision.and_then(|revision| revision.webhook) else {
        // If the revision of the live generation is missing or malformed, the webhooks stay, so that `failurePolicy` decides
        // about requests until another generation is live. Without the webhook, all requests would pass.
        return unchanged(observed);
    };
    let (current, others): (Vec<_>, Vec<_>) = observed.webhooks.iter().partition(|webhook| webhook.kind == kind);
    // A new generation also changes the rules of an existing webhook, so the time since the generation is live counts too.
    let live_for = revision.filter(|revision| revision.mark == Some(Mark::Live)).map(|revision| revision.marked_for);
    let known_for = current.first().map(|webhook| webhook.age).min(live_for).unwrap_or_default();
    let overlap = WEBHOOK_OVERLAP.min(observed.retire_after);
    let Some(remaining) = overlap.checked_sub(known_for).filter(|remaining| !remaining.is_zero()) else {
        let delete = others.iter().map(|webhook| webhook.kind).collect();
        return WebhookSteps { delete, ..WebhookSteps::default() };
    };
    WebhookSteps {
        delete: Vec::new(),
        still_called: others.iter().flat_map(|webhook| webhook.calls.iter().copied()).collect(),
        requeue_after: others.first().map(|_| remaining),
    }
}

/// Returns the steps if the operator leaves all webhooks unchanged.
pub(super) fn unchanged(observed: &Observed) -> WebhookSteps {
    WebhookSteps { still_called: observed.called().collect(), ..WebhookSteps::default() }
}
