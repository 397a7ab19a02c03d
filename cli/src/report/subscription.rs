//! The reports about subscriptions: the state of a component, and of each of its policies.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proviso_core::Failure;
use proviso_crds::conditions::failure;
use proviso_crds::{ConditionType, LastUpdate, MAX_PENDING, Notify, RejectedChange, UpdateResult};
use serde::Serialize;

use super::next_step::NextStep;
use super::policy_bodies::PolicyBodies;
use crate::found::{Found, Omitted};
use crate::objects::SubscriptionObject;

/// The reasons of the condition `Delivered` that is false for a short time, in a cluster and over a folder; the user need not act.
const TRANSIENT_REASONS: [&str; 2] = ["Delivering", "Pending"];

/// The state of the delivery to a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DeliveryState {
    /// The component has all policies that it should have.
    Delivered,
    /// The delivery goes on.
    Pending,
    /// The component rejected a change.
    Rejected,
    /// A selector does not work, or the policies cannot be delivered.
    Failed,
}

/// The state of a subscription.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionReport {
    pub namespace: String,
    pub name: String,
    /// The service component name.
    pub scn: String,
    /// The workload, such as `Deployment/collector`; absent for a component outside of Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    pub config_map: String,
    /// The notification: `exec` or `http`; absent if the component gets none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<&'static str>,
    pub state: DeliveryState,
    /// The state in a sentence.
    pub summary: String,
    /// The numbers of policies that the component has and should have, such as `3/4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update: Option<LastUpdate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// The cause of the states `Rejected` and `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Failure>,
    pub conditions: Vec<Condition>,
}

/// The state of many subscriptions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SubscriptionOverview {
    pub subscriptions: Vec<SubscriptionReport>,
    pub unseen: Vec<Omitted>,
}

/// The state of one policy of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ItemState {
    /// The component has the version that it should have.
    Current,
    /// The change is not sent yet.
    Pending,
    /// The change was sent, and its result is not known yet.
    Unconfirmed,
    /// The component rejected the change.
    Rejected,
}

/// A policy that a component has or should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ItemReport {
    pub policy: String,
    /// The version that the component has; absent if it does not have the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has: Option<String>,
    /// The version that the component should have; absent if it should not have the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should: Option<String>,
    pub state: ItemState,
    /// The answer of a component that rejected the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The report about one subscription.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionDetail {
    #[serde(flatten)]
    pub subscription: SubscriptionReport,
    pub items: Vec<ItemReport>,
    /// True if the status names only the first changes, so that `items` may lack some.
    pub is_truncated: bool,
    /// The bodies of the policies that differ; absent without `--diff`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bodies: Option<Vec<PolicyBodies>>,
    pub next_steps: Vec<NextStep>,
    pub unseen: Vec<Omitted>,
}

impl SubscriptionReport {
    /// Returns the report about a subscription.
    #[must_use]
    pub fn new(object: &SubscriptionObject) -> Self {
        let (state, problem) = state(object);
        let (spec, status) = (&object.spec, &object.status);
        let component = spec.component.as_ref().map(|component| format!("{:?}/{}", component.kind, component.name));
        let mut report = Self {
            namespace: object.name.namespace.clone(),
            name: object.name.name.clone(),
            scn: spec.service_component_name(&object.name.namespace, &object.name.name),
            component,
            config_map: spec.delivery.config_map.clone(),
            notify: spec.delivery.notify.as_ref().map(notification),
            state,
            summary: String::new(),
            policies: status.summary.clone().filter(|_| object.is_observed()),
            last_update: status.last_update.clone(),
            created: object.created.map(Time),
            problem,
            conditions: status.conditions.clone(),
        };
        report.summary = summary(object, state);
        report
    }
}

impl SubscriptionOverview {
    /// Returns the report about the subscriptions, sorted by namespace and name.
    #[must_use]
    pub fn new(mut found: Found<SubscriptionObject>) -> Self {
        found.items.sort_by(|a, b| a.name.cmp(&b.name));
        Self { subscriptions: found.items.iter().map(SubscriptionReport::new).collect(), unseen: found.unseen }
    }
}

impl SubscriptionDetail {
    /// Returns the report about a subscription. `items` are its policies, and `bodies` is `None` if the user does not compare them.
    #[must_use]
    pub fn new(
        object: &SubscriptionObject,
        items: Vec<ItemReport>,
        bodies: Option<Vec<PolicyBodies>>,
        unseen: Vec<Omitted>,
        program: &str,
    ) -> Self {
        let subscription = SubscriptionReport::new(object);
        let next_steps = next_steps(&subscription, &items, program);
        let is_truncated = object.status.pending.len() >= MAX_PENDING;
        Self { subscription, items, is_truncated, bodies, next_steps, unseen }
    }
}

fn notification(notify: &Notify) -> &'static str {
    if notify.exec.is_some() { "exec" } else { "http" }
}

fn state(object: &SubscriptionObject) -> (DeliveryState, Option<Failure>) {
    if object.is_being_deleted || !object.is_observed() {
        return (DeliveryState::Pending, None);
    }
    let is = |condition: &Condition, status: &str| condition.status == status;
    let (resolved, delivered) = (object.condition(ConditionType::Resolved), object.condition(ConditionType::Delivered));
    if let Some(first) = waiting_rejection(object) {
        return (DeliveryState::Rejected, Some(rejection(first)));
    }
    if let Some(condition) = resolved.filter(|condition| is(condition, "False")) {
        return (DeliveryState::Failed, Some(failure(condition)));
    }
    match delivered {
        Some(condition) if is(condition, "True") => (DeliveryState::Delivered, None),
        Some(condition) if is(condition, "False") && !TRANSIENT_REASONS.contains(&condition.reason.as_str()) => {
            (DeliveryState::Failed, Some(failure(condition)))
        }
        _ => (DeliveryState::Pending, None),
    }
}

/// Returns the first rejected change that the component should still have.
fn waiting_rejection(object: &SubscriptionObject) -> Option<&RejectedChange> {
    let status = &object.status;
    let is_pending = |id: &str| status.pending.len() >= MAX_PENDING || status.pending.iter().any(|it| it.id == id);
    status.rejected.iter().find(|change| is_pending(&change.id))
}

fn rejection(change: &RejectedChange) -> Failure {
    let what = match &change.version {
        Some(version) => format!("{} version {version}", change.id),
        None => format!("the removal of {}", change.id),
    };
    Failure { reason: "Rejected".into(), message: format!("{what}: {}", change.message) }
}

fn summary(object: &SubscriptionObject, state: DeliveryState) -> String {
    if object.is_being_deleted {
        return "it is being deleted".to_owned();
    }
    if !object.is_observed() {
        return "it has not been processed yet".to_owned();
    }
    let counts = object.status.summary.as_ref();
    let has = counts.map_or_else(String::new, |counts| format!(" ({counts})"));
    match state {
        DeliveryState::Delivered => format!("the component has all its policies{has}"),
        DeliveryState::Pending => format!("the delivery goes on{has}"),
        DeliveryState::Rejected => format!("the component keeps its last good policies{has}"),
        DeliveryState::Failed if is_retried(object) => format!("the last update failed, and is sent again{has}"),
        DeliveryState::Failed => format!("the component keeps the policies that it has{has}"),
    }
}

fn is_retried(object: &SubscriptionObject) -> bool {
    object.status.last_update.as_ref().is_some_and(|update| update.result == Some(UpdateResult::Failed))
}

impl ItemReport {
    /// Returns the policies that the component has or should have, by id.
    #[must_use]
    pub fn list(object: &SubscriptionObject) -> Vec<Self> {
        items(object)
    }
}

fn items(object: &SubscriptionObject) -> Vec<ItemReport> {
    let status = &object.status;
    let has: BTreeMap<_, _> = status.policies.iter().map(|it| (it.id.as_str(), it.version.as_str())).collect();
    let pending: BTreeMap<_, _> = status.pending.iter().map(|it| (it.id.as_str(), it.version.as_deref())).collect();
    let unconfirmed: BTreeSet<_> = status.unconfirmed.iter().map(String::as_str).collect();
    let rejected = |id: &str, version: Option<&str>| {
        status.rejected.iter().find(|change| change.id == id && change.version.as_deref() == version)
    };
    let ids: BTreeSet<_> = has.keys().chain(pending.keys()).chain(&unconfirmed).copied().collect();
    let item = |id: &str| {
        let current = has.get(id).copied();
        let should = pending.get(id).copied().unwrap_or(current);
        let rejection = pending.get(id).and_then(|version| rejected(id, *version));
        let state = match rejection {
            Some(_) => ItemState::Rejected,
            None if unconfirmed.contains(id) => ItemState::Unconfirmed,
            None if pending.contains_key(id) => ItemState::Pending,
            None => ItemState::Current,
        };
        ItemReport {
            policy: id.to_owned(),
            has: current.map(str::to_owned),
            should: should.map(str::to_owned),
            state,
            message: rejection.map(|change| change.message.clone()),
        }
    };
    ids.into_iter().map(item).collect()
}

fn next_steps(report: &SubscriptionReport, items: &[ItemReport], program: &str) -> Vec<NextStep> {
    let mut steps = Vec::new();
    let mut add = |what: &str, command: String| steps.push(NextStep { what: what.to_owned(), command: Some(command) });
    let (name, namespace) = (&report.name, &report.namespace);
    if let Some(item) = items.iter().find(|item| item.state == ItemState::Rejected) {
        add("Compare the bodies", format!("{program} subscriptions status {name} -n {namespace} --diff"));
        if item.should.as_ref().is_some_and(|version| !version.contains('/')) {
            add("Undo the change", format!("{program} rollback {}", item.policy));
        }
    }
    if matches!(report.state, DeliveryState::Rejected | DeliveryState::Failed) {
        add("Send the policies again", format!("{program} subscriptions resend {name} -n {namespace}"));
    }
    steps
}

#[cfg(test)]
#[path = "subscription/tests.rs"]
mod tests;
