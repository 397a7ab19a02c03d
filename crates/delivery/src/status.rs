//! The status of a subscription, from the record of its deliveries and from the state that its component should have.

use std::collections::BTreeMap;

use jiff::Timestamp;
use proviso_core::configuration::{CanaryOutcome, Change, Delta, Desired, Record, Resolution};
use proviso_core::{Failure, PolicyId};
use proviso_crds::{
    ConditionState, ConditionType, LastUpdate, MAX_PENDING, PendingChange, PolicySubscriptionStatus, UpdateResult,
    reasons,
};

/// The maximum size of the message of a condition, in bytes. The API server accepts 32 KiB.
const MAX_MESSAGE: usize = 4096;
/// The maximum number of failures that a message names.
const MAX_NAMED: usize = 5;
/// The maximum size of the annotation `proviso.dev/resend` in a status, in bytes.
const MAX_RESEND: usize = 64;

/// The facts of a status that are not on record.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The generation of the subscription.
    pub generation: Option<i64>,
    /// The state that the component should have; `None` before the first resolution after a start.
    pub desired: Option<Desired>,
    /// The failures of selectors and of bodies, each with its remedy.
    pub failures: Vec<Failure>,
    /// The selectors and canaries that work, but have no effect.
    pub warnings: Vec<Failure>,
    /// The failure that stops the delivery, or that makes it useless.
    pub obstacle: Option<Failure>,
    /// The cause of a failed notification, if it is more precise than the result.
    pub cause: Option<Failure>,
    /// A fact about acknowledged policies, such as a component without pods.
    pub note: Option<String>,
    /// The value of the annotation `proviso.dev/resend` of the last resend that has begun.
    pub observed_resend: Option<String>,
}

/// Returns the value of the annotation `proviso.dev/resend` as a status stores it.
#[must_use]
pub fn resend_value(annotation: &str) -> &str {
    &annotation[..annotation.floor_char_boundary(MAX_RESEND)]
}

/// Returns the status. `known` is the last one: before the first resolution, its conditions stay.
#[must_use]
pub fn compute(
    view: &View,
    record: &Record,
    last: Option<&LastUpdate>,
    known: &PolicySubscriptionStatus,
    now: Timestamp,
) -> PolicySubscriptionStatus {
    let mut status = known.clone().with_record(record);
    status.last_update = last.map(|last| LastUpdate { message: last.message.as_deref().map(cut), ..last.clone() });
    status.observed_resend.clone_from(&view.observed_resend);
    let Some(desired) = &view.desired else {
        if let Some(obstacle) = &view.obstacle {
            set_conditions(&mut status, view, [(ConditionType::Delivered, obstacle.clone().into())], known, now);
        }
        return status;
    };
    let pending = pending(desired, record);
    let has = desired.items.iter().filter(|(id, _)| !pending.contains_key(*id)).count();
    status.summary = Some(format!("{has}/{}", desired.items.len()));
    let delivered = delivered(view, &pending, record, last, desired.items.len());
    let pending = pending.into_iter().take(MAX_PENDING);
    status.pending = pending.map(|(id, version)| PendingChange { id: id.to_string(), version }).collect();
    status.observed_generation = view.generation;
    let conditions = [(ConditionType::Resolved, resolved(view)), (ConditionType::Delivered, delivered)];
    set_conditions(&mut status, view, conditions, known, now);
    status
}

fn set_conditions(
    status: &mut PolicySubscriptionStatus,
    view: &View,
    conditions: impl IntoIterator<Item = (ConditionType, ConditionState)>,
    known: &PolicySubscriptionStatus,
    now: Timestamp,
) {
    for (type_, state) in conditions {
        let state = ConditionState { message: cut(&state.message), ..state };
        let condition = state.into_condition(type_, &known.conditions, view.generation, now);
        status.conditions.retain(|other| other.type_ != condition.type_);
        status.conditions.push(condition);
    }
    status.conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
}

/// Returns the changes that the component does not have yet, with the version that it should have.
fn pending(desired: &Desired, record: &Record) -> BTreeMap<PolicyId, Option<String>> {
    let Delta { updated, removed, .. } = Delta::between(&record.acknowledged, desired);
    let is_decided = |id: &&PolicyId| desired.items.contains_key(*id) || !desired.keep.contains(id);
    let unconfirmed = record.unconfirmed.iter().filter(is_decided);
    let version = |id: &PolicyId| desired.items.get(id).map(|item| item.version().to_string());
    updated.iter().chain(&removed).chain(unconfirmed).map(|id| (id.clone(), version(id))).collect()
}

fn resolved(view: &View) -> ConditionState {
    let Some(first) = view.failures.first() else {
        let warnings = messages(&view.warnings);
        return match view.warnings.first() {
            // The selectors work, and a policy may be created later.
            Some(first) => ConditionState::yes(first.reason.clone(), warnings),
            None => ConditionState::yes(reasons::RESOLVED, "every selector works"),
        };
    };
    let kept = "The component keeps the policies that it has";
    ConditionState::no(first.reason.clone(), format!("{}. {kept}", messages(&view.failures)))
}

/// Returns the state of the condition `Delivered`. `count` is the number of policies that the component should have.
fn delivered(
    view: &View,
    pending: &BTreeMap<PolicyId, Option<String>>,
    record: &Record,
    last: Option<&LastUpdate>,
    count: usize,
) -> ConditionState {
    if let Some(obstacle) = &view.obstacle {
        return obstacle.clone().into();
    }
    let rejections = || record.rejected.iter().filter(|(id, _)| pending.contains_key(*id));
    if let Some((id, rejected)) = rejections().next() {
        let more = rejections().count() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        let message = rejected.first().map(|it| it.message.as_str()).unwrap_or_default();
        let is_removal = rejected.first().is_some_and(|it| it.change == Change::Removal);
        let change = if is_removal { "the removal of the policy " } else { "the policy " };
        return ConditionState::no(
            reasons::REJECTED,
            format!(
                "the component has rejected {change}{id}{more}: {message}. It keeps the policies that it has acknowledged. Correct the \
                 policy, or make the component accept it and send it again: proviso subscriptions resend"
            ),
        );
    }
    if !pending.is_empty() {
        let changes = if pending.len() == 1 { "1 change".to_owned() } else { format!("{} changes", pending.len()) };
        return match last {
            Some(LastUpdate { result: Some(UpdateResult::Failed), message, .. }) => {
                let reason = view.cause.as_ref().map_or(reasons::DELIVERY_FAILED, |cause| cause.reason.clone());
                let message = message.as_deref().unwrap_or("the result of the update is not known");
                ConditionState::no(reason, format!("{message}. The update is sent again, with {changes}"))
            }
            _ => ConditionState::no(reasons::DELIVERING, format!("the component does not have {changes} yet")),
        };
    }
    let policies = if count == 1 {
        "the component has 1 policy".to_owned()
    } else {
        format!("the component has {count} policies")
    };
    let message = view.note.as_ref().map_or_else(|| policies.clone(), |note| format!("{policies}; {note}"));
    ConditionState::yes(reasons::DELIVERED, message)
}

/// Returns the first messages, and the number of the others.
fn messages(failures: &[Failure]) -> String {
    let named: Vec<_> = failures.iter().take(MAX_NAMED).map(|failure| failure.message.as_str()).collect();
    let more = failures.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    named.join("; ") + &more
}

fn cut(message: &str) -> String {
    message[..message.floor_char_boundary(MAX_MESSAGE)].to_owned()
}

/// Returns the canaries that do not get the candidate, with the path of the field. An experiment that is not active is the usual state.
pub fn canary_warnings(resolution: &Resolution) -> impl Iterator<Item = Failure> {
    resolution.canaries.iter().enumerate().filter_map(|(index, outcome)| {
        let text = match outcome {
            CanaryOutcome::Delivered | CanaryOutcome::NotActive => return None,
            CanaryOutcome::PolicyNotFound => "the policy has no version that can be delivered",
            CanaryOutcome::OtherNamespace => "the policy is in another namespace",
            CanaryOutcome::Conflict => {
                "several experiments of the policy are active, so that the component gets the live version: keep one of them"
            }
            CanaryOutcome::NotSelected => "no selector in spec.policies selects the candidate",
        };
        Some(Failure::new(reasons::CANARY_NOT_DELIVERED, format!("spec.canaryFor[{index}]: {text}")))
    })
}

#[cfg(test)]
mod tests;
