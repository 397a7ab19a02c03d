//! The deliveries to one component: at most one update is in flight, and only the newest state waits for it.
//!
//! Each update is computed against the state that the component has acknowledged. An update that was sent, and whose result is not
//! known, leaves its policies unconfirmed: the next update contains them again, also if they are back at the acknowledged version.

mod changes;
mod outcome;
mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::backoff;
use super::body::Item;
use super::delta::{Desired, Entries, Entry, Items};
use super::parts::{Contents, StoredParts};
use crate::policy_id::PolicyId;

pub use outcome::{Answer, Outcome, Reply};
pub use update::{LastKnown, Update};

/// The number of consecutive rejections after which all changes that wait are held back. It is larger than the number of rejections
/// that isolate one policy among [`MAX_POLICIES`](super::MAX_POLICIES).
pub const MAX_CONSECUTIVE_REJECTIONS: u32 = 32;

/// The record of the deliveries to a component, which survives a restart of the operator. The operator writes the record before it
/// writes policies or notifies the component, and after each result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The policies that the component has acknowledged.
    pub acknowledged: Entries,
    /// The policies whose state in the component is not known: an update of them was sent, or was about to be sent.
    pub unconfirmed: BTreeSet<PolicyId>,
    /// The changes that the component has rejected, and that are not sent again: of each policy at most the change to the desired body,
    /// and the change back to the acknowledged body.
    pub rejected: BTreeMap<PolicyId, Vec<Rejection>>,
}

/// A change that the component has rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub change: Change,
    /// The message of the component.
    pub message: String,
}

/// A change of one policy of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The component gets this body.
    To(Entry),
    /// The component loses the policy.
    Removal,
}

/// The deliveries to one component.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    record: Record,
    /// The bodies of the acknowledged policies, as far as they are known.
    acknowledged: Items,
    /// The bodies of the unconfirmed policies that were sent last.
    attempted: Items,
    /// The desired state; `None` until the first resolution after a start.
    desired: Option<Desired>,
    in_flight: Option<Update>,
    /// The last update, if it has failed and no other update has been sent since.
    failed: Option<Update>,
    /// True if policies of the component were written before.
    has_event: bool,
    /// The maximum number of changes in the next update; `None` means no limit.
    batch: Option<usize>,
    failures: u32,
    delay: Duration,
    rejections: u32,
}

/// The next step of the deliveries to a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The component has every change that it can get, or no state is desired yet.
    Idle,
    /// An update is in flight. The next step follows its result.
    Busy,
    /// The component is not called before this time is over, because the last update has failed.
    Wait(Duration),
    /// This update is in flight now. The operator writes the record, writes the contents of the update, notifies the component, and
    /// reports the result to [`Delivery::finish`]. An error of one of the writes is [`Outcome::Failed`]. A component without
    /// notifications acknowledges an update by the write of the contents.
    Deliver(Update),
}

impl Delivery {
    /// Returns the deliveries after a start of the operator, from the record and the stored policies. A policy whose stored body is not
    /// the acknowledged one is unconfirmed: the operator stopped during an update, or somebody edited the stored policies.
    #[must_use]
    pub fn restore(record: Record, stored: &StoredParts) -> Self {
        let mut delivery = Self { record, has_event: stored.has_event(), ..Self::default() };
        let Record { acknowledged, unconfirmed, .. } = &mut delivery.record;
        for (id, item) in stored.items.iter().filter(|(id, _)| unconfirmed.contains(*id)) {
            delivery.attempted.insert(id.clone(), item.clone());
        }
        for id in acknowledged.keys().chain(stored.items.keys()) {
            if stored.items.get(id).map(Item::entry).as_ref() != acknowledged.get(id) {
                unconfirmed.insert(id.clone());
            }
        }
        for (id, entry) in &*acknowledged {
            if let Some(item) = stored.bodies(id).iter().find(|item| item.entry() == *entry) {
                delivery.acknowledged.insert(id.clone(), item.clone());
            }
        }
        delivery
    }

    /// Returns the deliveries after somebody has edited the stored policies: those that are not stored as the component has acknowledged
    /// them are unconfirmed, and also `overwritten` ones, whose edit an update has replaced since. In contrast to a restart, the bodies that
    /// are known stay known. The desired state must be set again.
    #[must_use]
    pub fn restore_edited(&self, stored: &StoredParts, overwritten: BTreeSet<PolicyId>) -> Self {
        let mut delivery = Self::restore(self.record.clone(), stored);
        for (id, item) in &self.acknowledged {
            if delivery.record.acknowledged.get(id) == Some(&item.entry()) {
                delivery.acknowledged.entry(id.clone()).or_insert_with(|| item.clone());
            }
        }
        delivery.attempted.extend(self.attempted.clone());
        delivery.record.unconfirmed.extend(overwritten);
        delivery
    }

    /// Returns the record to write.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the update that is in flight.
    #[must_use]
    pub fn in_flight(&self) -> Option<&Update> {
        self.in_flight.as_ref()
    }

    /// Sets the desired state. It supersedes a desired state that waits. Returns true if the state is new.
    pub fn want(&mut self, desired: Desired) -> bool {
        if self.desired.as_ref() == Some(&desired) {
            return false;
        }
        self.rejections = 0;
        for (id, item) in &desired.items {
            if self.record.acknowledged.get(id) == Some(&item.entry()) {
                // The same body as that which was read from storage, and the components of a policy share it.
                self.acknowledged.insert(id.clone(), item.clone());
            }
        }
        self.desired = Some(desired);
        self.forget_old_rejections();
        true
    }

    /// Begins the next update, if there is one. `elapsed` is the time since the last result.
    pub fn begin(&mut self, elapsed: Duration) -> Step {
        if self.in_flight.is_some() {
            return Step::Busy;
        }
        let mut changes = self.changes();
        if changes.is_empty() {
            return Step::Idle;
        }
        if let Some(remaining) = self.delay.checked_sub(elapsed).filter(|remaining| !remaining.is_zero()) {
            return Step::Wait(remaining);
        }
        if let Some(next) = self.batch.and_then(|batch| changes.keys().nth(batch).cloned()) {
            changes.split_off(&next);
        }
        let update = self.update(changes);
        self.record.unconfirmed.extend(update.ids().cloned());
        self.attempted.retain(|id, _| !update.removed.contains_key(id));
        self.attempted.extend(update.updated.clone());
        self.has_event = true;
        self.failed = None;
        self.in_flight = Some(update.clone());
        Step::Deliver(update)
    }

    /// Records the result of the update that is in flight. `random` is a random number from 0 to 1, for the delay after a failure.
    pub fn finish(&mut self, outcome: Outcome, random: f64) {
        let Some(update) = self.in_flight.take() else {
            return;
        };
        match outcome {
            Outcome::Acknowledged => self.acknowledge(&update),
            Outcome::Rejected { message, is_partly_applied } => self.reject(&update, &message, is_partly_applied),
            Outcome::Failed { .. } => {
                self.failures = self.failures.saturating_add(1);
                self.delay = backoff::delay(self.failures, random);
                self.failed = Some(update);
                return;
            }
        }
        (self.failures, self.delay) = (0, Duration::ZERO);
        self.attempted.retain(|id, _| self.record.unconfirmed.contains(id));
    }

    /// Makes the next update contain all policies of the component, also the rejected ones, without a delay. The operator writes the
    /// record after it, so that a restart does not lose the request.
    pub fn resend(&mut self) {
        self.record.unconfirmed.extend(self.record.acknowledged.keys().cloned());
        self.record.rejected.clear();
        (self.batch, self.failures, self.delay, self.rejections) = (None, 0, Duration::ZERO, 0);
    }

    /// Ends the delay after a failure: the next update may begin at once.
    pub fn retry(&mut self) {
        (self.failures, self.delay) = (0, Duration::ZERO);
    }

    /// Returns the contents that must be stored now: those of the last update if its result is not known, and the acknowledged policies
    /// otherwise.
    #[must_use]
    pub fn contents(&self) -> Contents {
        match self.in_flight.as_ref().or(self.failed.as_ref()) {
            Some(update) => update.contents(),
            None => Contents { items: self.acknowledged.clone(), previous: Items::new() },
        }
    }

    fn acknowledge(&mut self, update: &Update) {
        for (id, item) in &update.updated {
            self.record.acknowledged.insert(id.clone(), item.entry());
            self.acknowledged.insert(id.clone(), item.clone());
        }
        for id in update.removed.keys() {
            self.record.acknowledged.remove(id);
            self.acknowledged.remove(id);
        }
        for id in update.ids() {
            self.record.unconfirmed.remove(id);
        }
        self.forget_old_rejections();
        self.rejections = 0;
        self.batch = self.batch.map(|batch| batch.saturating_mul(2));
        if self.batch.is_some_and(|batch| batch >= self.changes().len()) {
            self.batch = None;
        }
    }

    /// Records a rejection. A single change is held back. Of several changes, the next update contains the first half, so that the
    /// policy that the component rejects is found, and the others are delivered.
    fn reject(&mut self, update: &Update, message: &str, is_partly_applied: bool) {
        self.rejections += 1;
        let count = update.ids().count();
        if self.rejections >= MAX_CONSECUTIVE_REJECTIONS {
            let held: Vec<_> = self.changes().iter().map(|(id, change)| (id.clone(), change.record())).collect();
            for (id, change) in held {
                self.hold_back(id, change, message);
            }
        }
        if count == 1 || self.rejections >= MAX_CONSECUTIVE_REJECTIONS {
            for (id, change) in update.changes() {
                self.hold_back(id, change, message);
            }
        } else {
            self.batch = Some(count.div_ceil(2));
        }
        if !is_partly_applied {
            for id in update.ids().filter(|id| !update.was_unconfirmed.contains(id)) {
                self.record.unconfirmed.remove(id);
            }
        }
    }

    fn hold_back(&mut self, id: PolicyId, change: Change, message: &str) {
        let rejected = self.record.rejected.entry(id).or_default();
        if rejected.iter().all(|rejection| rejection.change != change) {
            rejected.push(Rejection { change, message: message.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests;
