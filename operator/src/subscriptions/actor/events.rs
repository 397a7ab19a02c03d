//! The Events of a subscription, for `kubectl describe`.

use std::collections::BTreeSet;

use kube::runtime::events::{Event, EventType};
use proviso_core::configuration::Record;
use proviso_core::{PolicyId, Reason};
use proviso_crds::{LastUpdate, PolicySubscription, PolicySubscriptionStatus, UpdateResult, reasons};

use crate::context::Context;

/// The states that Events were about: a failure is reported once, and not at each attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    is_failing: bool,
    conflict: Option<String>,
    rejected: BTreeSet<PolicyId>,
}

impl Reported {
    /// Returns the states that the last operator has reported.
    pub fn of(status: Option<&PolicySubscriptionStatus>) -> Self {
        let last = status.and_then(|status| status.last_update.as_ref()).and_then(|last| last.result);
        let rejected = status.map(|status| status.record().rejected.into_keys().collect()).unwrap_or_default();
        Self { is_failing: last == Some(UpdateResult::Failed), conflict: None, rejected }
    }

    /// Publishes the Events about an update that has ended.
    pub async fn update(&mut self, context: &Context, about: &PolicySubscription, last: &LastUpdate, record: &Record) {
        for event in self.events(last, record) {
            context.publish_or_log(about, event).await;
        }
    }

    fn events(&mut self, last: &LastUpdate, record: &Record) -> Vec<Event> {
        let LastUpdate { id, result, message, .. } = last;
        let message = message.as_deref().unwrap_or_default();
        let rejected: BTreeSet<_> = record.rejected.keys().cloned().collect();
        let new: Vec<_> = rejected.difference(&self.rejected).map(PolicyId::as_str).collect();
        let new = (!new.is_empty()).then(|| {
            let named = new.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            let more = if new.len() > 5 { format!(" and {} more", new.len() - 5) } else { String::new() };
            event(EventType::Warning, &reasons::REJECTED, format!("the component rejects {named}{more}: {message}"))
        });
        self.rejected = rejected;
        let is_first_failure = *result == Some(UpdateResult::Failed) && !self.is_failing;
        self.is_failing = *result == Some(UpdateResult::Failed);
        let other = match result {
            Some(UpdateResult::Acknowledged) => {
                let count = record.acknowledged.len();
                let note = format!("the component has acknowledged the update {id}. Its policies: {count}");
                Some(event(EventType::Normal, &reasons::DELIVERED, note))
            }
            Some(UpdateResult::Failed) if is_first_failure => {
                let note = format!("the update {id} has failed, and is sent again: {message}");
                Some(event(EventType::Warning, &reasons::DELIVERY_FAILED, note))
            }
            _ => None,
        };
        other.into_iter().chain(new).collect()
    }

    /// Publishes an Event about a ConfigMap that belongs to somebody else, once for each conflict.
    pub async fn conflict(&mut self, context: &Context, about: &PolicySubscription, message: &str) {
        if self.conflict.as_deref() != Some(message) {
            self.conflict = Some(message.to_owned());
            let event = event(EventType::Warning, &reasons::CONFIG_MAP_CONFLICT, message.to_owned());
            context.publish_or_log(about, event).await;
        }
    }

    pub fn no_conflict(&mut self) {
        self.conflict = None;
    }
}

fn event(type_: EventType, reason: &Reason, note: String) -> Event {
    Event { type_, reason: reason.to_string(), note: Some(note), action: "Deliver".to_owned(), secondary: None }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proviso_core::configuration::{Change, Rejection};

    use super::*;

    fn last(result: UpdateResult) -> LastUpdate {
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        LastUpdate { id: "1".to_owned(), time, result: Some(result), message: Some("exit code 3".to_owned()) }
    }

    fn rejecting(policies: &[&str]) -> Record {
        let rejection = || vec![Rejection { change: Change::Removal, message: "exit code 3".to_owned() }];
        Record { rejected: policies.iter().map(|id| (id.parse().unwrap(), rejection())).collect(), ..Record::default() }
    }

    #[test]
    fn a_row_of_failures_and_each_rejected_policy_are_reported_once() {
        use UpdateResult::{Acknowledged, Failed, Rejected};
        let mut reported = Reported::default();
        for (result, record, expected) in [
            (Failed, rejecting(&[]), vec!["DeliveryFailed"]),
            (Failed, rejecting(&[]), vec![]),
            (Acknowledged, rejecting(&[]), vec!["Delivered"]),
            (Failed, rejecting(&[]), vec!["DeliveryFailed"]),
            // The rejected one of several changes is not known yet.
            (Rejected, rejecting(&[]), vec![]),
            (Rejected, rejecting(&["cluster.a"]), vec!["Rejected"]),
            (Rejected, rejecting(&["cluster.a", "cluster.b"]), vec!["Rejected"]),
            (Acknowledged, rejecting(&["cluster.a", "cluster.b"]), vec!["Delivered"]),
        ] {
            let events = reported.events(&last(result), &record);
            let reasons: Vec<_> = events.iter().map(|event| event.reason.as_str()).collect();
            assert_eq!(reasons, expected, "{result:?} {record:?}");
        }
        let status =
            PolicySubscriptionStatus { last_update: Some(last(Failed)), ..PolicySubscriptionStatus::default() };
        let status = status.with_record(&rejecting(&["cluster.a"]));
        let mut restored = Reported::of(Some(&status));
        assert!(restored.events(&last(Failed), &rejecting(&["cluster.a"])).is_empty());
    }
}
