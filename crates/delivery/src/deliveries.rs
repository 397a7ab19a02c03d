//! The deliveries to one component, one update after the other.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::PolicyId;
use proviso_core::configuration::{
    Action, Contents, Delivery, Desired, Event, Items, MAX_DELAY, Notification, Outcome, Record, Step, Update, delay,
};
use proviso_crds::{LastUpdate, UpdateResult};
use tokio::time::Instant;
use uuid::Uuid;

use crate::Component;

/// The deliveries to one component.
#[derive(Debug)]
pub struct Deliveries<C> {
    component: C,
    delivery: Delivery,
    desired: Desired,
    /// The contents that were written last; `None` if nothing was written since the start. Other stored contents are an edit by hand.
    written: Option<Contents>,
    /// The policies that somebody has edited, and whose edit an update has overwritten. The component may have read the edit.
    overwritten: BTreeSet<PolicyId>,
    last: Option<LastUpdate>,
    /// The time of the last result.
    finished: Instant,
    /// True if the record has changed since it was written.
    is_unrecorded: bool,
    edits: Edits,
}

/// The edits by hand in a row. Each one doubles the time until the next one is repaired, so that a program that writes the stored policies
/// again and again does not cause a notification for each of its writes.
#[derive(Debug, Default)]
struct Edits {
    count: u32,
    /// The time of the last repair.
    repaired: Option<Instant>,
    delay: Duration,
}

impl Edits {
    /// Returns the time until the next edit may be repaired; zero if it may be repaired now.
    fn remaining(&self) -> Duration {
        self.repaired.map_or(Duration::ZERO, |repaired| self.delay.saturating_sub(repaired.elapsed()))
    }

    fn repair(&mut self) {
        // After a long time without an edit, the next one is the first in a row.
        let is_first = self.repaired.is_none_or(|repaired| repaired.elapsed() > 2 * MAX_DELAY);
        self.count = if is_first { 1 } else { self.count.saturating_add(1) };
        self.delay = delay(self.count, random());
        self.repaired = Some(Instant::now());
    }
}

/// The next step of the deliveries to a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The component has every change that it can get.
    Idle,
    /// An update has a result. Set the newest desired state, and advance again at once.
    Again,
    /// The last update has failed, or somebody edits the stored policies again and again. Advance again after this time.
    After(Duration),
}

impl<C: Component> Deliveries<C> {
    /// Reads the record and the stored policies of a component. `last` is the last update on record.
    ///
    /// # Errors
    /// Returns the error of a read.
    pub async fn restore(component: C, last: Option<LastUpdate>) -> Result<Self, C::Error> {
        let record = component.record().await?;
        let delivery = Delivery::restore(record, &component.stored().await?);
        Ok(Self {
            component,
            delivery,
            desired: Desired::default(),
            written: None,
            overwritten: BTreeSet::new(),
            last,
            finished: Instant::now(),
            is_unrecorded: false,
            edits: Edits::default(),
        })
    }

    /// Returns the component.
    #[must_use]
    pub fn component(&self) -> &C {
        &self.component
    }

    /// Returns the component, to change how it is reached.
    pub fn component_mut(&mut self) -> &mut C {
        &mut self.component
    }

    /// Returns the record of the deliveries.
    #[must_use]
    pub fn record(&self) -> &Record {
        self.delivery.record()
    }

    /// Returns the state that the component should have.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Returns the last update; `None` before the first one.
    #[must_use]
    pub fn last(&self) -> Option<&LastUpdate> {
        self.last.as_ref()
    }

    /// Sets the desired state. It replaces an older one that waits.
    pub fn want(&mut self, desired: Desired) {
        self.delivery.want(desired.clone());
        self.desired = desired;
    }

    /// Makes the next update contain all policies of the component, also the rejected ones, without a delay.
    ///
    /// # Errors
    /// Returns the error of the write of the record. The resend is repeated by another call.
    pub async fn resend(&mut self) -> Result<(), C::Error> {
        self.delivery.resend();
        self.record_now().await
    }

    /// Ends the delay after a failure: the next update begins at once. For a change that may have removed the cause of the failure.
    pub fn retry(&mut self) {
        self.delivery.retry();
    }

    /// Performs the next update, or repairs the stored policies if there is no update to perform.
    ///
    /// # Errors
    /// Returns the error of a read or write. The next call goes on.
    pub async fn advance(&mut self) -> Result<Next, C::Error> {
        if self.is_unrecorded {
            self.record_now().await?;
        }
        match self.delivery.begin(self.finished.elapsed()) {
            Step::Idle => self.repair().await,
            Step::Wait(after) => Ok(Next::After(after)),
            // `deliver` ends each update that it begins, unless its future was dropped.
            Step::Busy => {
                self.finish(Outcome::Failed { message: "the update was interrupted".to_owned() });
                Ok(Next::Again)
            }
            Step::Deliver(update) => {
                self.deliver(&update).await?;
                Ok(Next::Again)
            }
        }
    }

    async fn deliver(&mut self, update: &Update) -> Result<(), C::Error> {
        let (id, now) = (Uuid::new_v4().to_string(), Timestamp::now());
        let event = update.event(timestamp(now), id.clone());
        self.last = Some(LastUpdate { id, time: Time(now), result: None, message: None });
        self.is_unrecorded = true;
        let announced = self.announce(update, &event).await;
        let outcome = match &announced {
            Ok(()) => self.component.notify(&Notification::new(update)).await,
            Err(error) => Outcome::Failed { message: error.to_string() },
        };
        self.finish(outcome);
        self.record_now().await?;
        // The same write would probably fail again, perhaps after a long time.
        announced?;
        let contents = self.delivery.contents();
        self.write(contents, event).await
    }

    /// Writes the record with the unconfirmed policies, and then the policies.
    async fn announce(&mut self, update: &Update, event: &Event) -> Result<(), C::Error> {
        self.record_now().await?;
        self.write(update.contents(), event.clone()).await
    }

    fn finish(&mut self, outcome: Outcome) {
        let (result, message) = match &outcome {
            Outcome::Acknowledged => (UpdateResult::Acknowledged, None),
            Outcome::Rejected { message, .. } => (UpdateResult::Rejected, Some(message.clone())),
            Outcome::Failed { message } => (UpdateResult::Failed, Some(message.clone())),
        };
        if let Some(last) = &mut self.last {
            (last.result, last.message) = (Some(result), message);
        }
        self.delivery.finish(outcome, random());
        self.finished = Instant::now();
        self.is_unrecorded = true;
    }

    async fn record_now(&mut self) -> Result<(), C::Error> {
        self.is_unrecorded = true;
        self.component.write_record(self.delivery.record(), self.last.as_ref()).await?;
        self.is_unrecorded = false;
        Ok(())
    }

    /// Writes the contents that must be stored now if other contents are stored. Contents that somebody edited may have reached the
    /// component: the edited policies are sent again.
    async fn repair(&mut self) -> Result<Next, C::Error> {
        let (stored, contents) = (self.component.stored().await?, self.delivery.contents());
        if stored.is_equal(&contents) && self.overwritten.is_empty() {
            self.written = Some(contents);
            return Ok(Next::Idle);
        }
        let has_other_bodies = self.written.as_ref().is_some_and(|written| written.items != stored.items);
        let is_edited = has_other_bodies || !self.overwritten.is_empty();
        if is_edited || self.written.as_ref() == Some(&contents) {
            let remaining = self.edits.remaining();
            if !remaining.is_zero() {
                return Ok(Next::After(remaining));
            }
            self.edits.repair();
        }
        if is_edited {
            self.delivery = self.delivery.restore_edited(&stored, std::mem::take(&mut self.overwritten));
            self.delivery.want(self.desired.clone());
            self.written = None;
            return Ok(Next::Again);
        }
        let action = if stored.has_event() { Action::Updated } else { Action::Gathered };
        let event = Event {
            action,
            timestamp: timestamp(Timestamp::now()),
            update_id: Uuid::new_v4().to_string(),
            policies_count: contents.items.len(),
        };
        self.write(contents, event).await?;
        Ok(Next::Idle)
    }

    /// Writes contents, and no object that has its part of them already.
    async fn write(&mut self, contents: Contents, event: Event) -> Result<(), C::Error> {
        let stored = self.component.stored().await?;
        if let Some(written) = self.written.replace(contents.clone()) {
            self.overwritten.extend(different(&written.items, &stored.items));
        }
        if stored.is_equal(&contents) {
            return Ok(());
        }
        let event = Event { policies_count: contents.items.len(), ..event };
        // The event has no map keys that are not strings, so that it can always be serialized.
        let parts = contents.parts(&stored.assignments(), &event).unwrap_or_default();
        self.component.write_parts(&stored.changed(&parts).collect::<Vec<_>>(), &stored.stale(&parts)).await
    }
}

/// Returns the policies whose bodies differ.
fn different<'a>(one: &'a Items, other: &'a Items) -> impl Iterator<Item = PolicyId> + 'a {
    one.keys().chain(other.keys()).filter(|id| one.get(*id) != other.get(*id)).cloned()
}

/// Returns the time as ONAP writes it: RFC 3339 in UTC with milliseconds.
fn timestamp(time: Timestamp) -> String {
    format!("{time:.3}")
}

/// Returns a random number from 0 to 1. Without a source of randomness, the delay has no random part.
#[must_use]
pub fn random() -> f64 {
    getrandom::u32().map_or(0.0, |number| f64::from(number) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests;
