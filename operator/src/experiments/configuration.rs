//! Experiments on configuration policies: their canaries, and the words of their conditions.

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use proviso_core::experiment::rollout::{Decision, Progress};
use proviso_core::{Failure, PolicyId};
use proviso_crds::{
    Canary, ConditionState as State, ConditionStatus, ConditionType, Conditions as _, PolicyKind, PolicySubscription,
    PreviewMetadata, reasons,
};

use super::conditions::suspended_message;
use crate::cache;
use crate::context::Context;
use crate::kinds::{ExperimentObject, PolicyObject as _, canaries_of};
use crate::malformed::MaybeMalformed;
use crate::revisions::Revision;

/// Returns the components that are canaries for this generation of the experiment `name`, in the order of a status.
pub(super) fn canaries(policy: &PolicyId, name: &str, generation: i64, context: &Context) -> Vec<Canary> {
    let named = context.caches.subscriptions.reader().by_key(&canaries_of(policy.as_str(), name));
    let readable = named.iter().filter_map(|subscription| subscription.0.as_ref().ok());
    let canaries = readable.filter_map(|subscription| Canary::of(subscription, policy, name, generation));
    let mut canaries: Vec<_> = canaries.collect();
    Canary::sort(&mut canaries);
    canaries
}

/// Maps a subscription to the experiments of this kind that it is a canary for.
pub(super) fn of_subscription<K: ExperimentObject>(
    subscription: &MaybeMalformed<PolicySubscription>,
) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    let own = subscription.namespace();
    let named = subscription.0.iter().flat_map(|known| &known.spec.canary_for);
    let experiments = named.filter_map(|canary| {
        let policy: PolicyId = canary.policy.parse().ok()?;
        let kind = if policy.namespace().is_some() { PolicyKind::Policy } else { PolicyKind::ClusterPolicy };
        let is_in_scope = policy.namespace().is_none_or(|namespace| own.as_deref() == Some(namespace));
        let is_ours = kind == K::Policy::KIND && is_in_scope;
        is_ours.then(|| cache::reference(&canary.experiment, policy.namespace()))
    });
    experiments.collect()
}

/// Returns the state of the condition `Initialized` while the operator validates a candidate.
pub(super) fn validating(candidates: &[Revision]) -> State {
    let conditions = candidates.iter().filter_map(|it| it.status.conditions.condition(ConditionType::Initialized));
    let mut failed = conditions.filter(|condition| condition.status == ConditionStatus::Unknown.as_str());
    match failed.next() {
        Some(failed) => State::unknown(reasons::VALIDATION_FAILED, failed.message.clone()),
        None => State::unknown(reasons::PREPARING, "the operator validates it"),
    }
}

/// Returns the state of the condition `Previewing`.
pub(super) fn previewing(
    decision: &Decision,
    accepted: &State,
    preview: Option<&PreviewMetadata>,
    generation: i64,
    has_canaries: bool,
) -> State {
    match &decision.progress {
        Progress::NotAccepted => State::no(reasons::NOT_ACCEPTED, accepted.message.clone()),
        Progress::NotStarted => State::no(reasons::NOT_STARTED, "it was not started, and spec.autoStart is false"),
        Progress::Stopping => State::no(reasons::STOPPING, "the candidate is withdrawn"),
        Progress::Suspended => State::no(reasons::SUSPENDED, suspended_message(preview, generation)),
        Progress::InitializationFailed(Failure { .. }) => State::no(reasons::NOT_INITIALIZED, "it is not valid"),
        Progress::Previewing if has_canaries => {
            State::yes(reasons::PREVIEWING, "its canaries get it: see status.canaries")
        }
        Progress::Previewing => {
            State::yes(reasons::PREVIEWING, "no component gets it: no PolicySubscription names it in spec.canaryFor")
        }
        // The other kinds of progress are about replicas.
        _ => State::no(reasons::PREPARING, "it is not validated yet"),
    }
}
