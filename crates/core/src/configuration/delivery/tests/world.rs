//! A simulated operator that can stop after each write, the objects that survive it, and a component of two pods.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::configuration::ConfigurationPolicy;
use crate::configuration::notification::Event as StoredEvent;
use crate::configuration::parts::Place;
use crate::configuration::testing::policy;

/// The content that a rejecting pod does not accept.
const BAD: i64 = 0;
/// A bound for the steps until a component is settled.
const MAX_STEPS: usize = 200;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Want(Items, Keep),
    /// The operator takes a step. It stops after this number of writes, if there are that many.
    Step {
        stop_after: Option<usize>,
        fault: Fault,
    },
    Resend,
    /// Somebody deletes an object, or changes the keys with this suffix.
    Edit(Option<u8>),
}

/// A fault of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The pods with this result apply the update, and the operator gets no result.
    Lost([bool; 2]),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pod {
    is_rejecting: bool,
    pub(super) policies: Entries,
}

/// The operator, its objects, and the component.
#[derive(Debug)]
pub(super) struct World {
    /// The record in the status of the subscription.
    pub(super) record: Record,
    parts: BTreeMap<(Place, usize), Part>,
    pub(super) pods: [Pod; 2],
    delivery: Delivery,
    newest: Option<Desired>,
    /// The size of the objects, in bytes.
    capacity: usize,
    /// The writes that are left until the operator stops.
    writes_left: Option<usize>,
}

/// The operator has stopped.
struct Stopped;

impl World {
    pub(super) fn new(rejecting: [bool; 2], capacity: usize) -> Self {
        Self {
            record: Record::default(),
            parts: BTreeMap::new(),
            pods: rejecting.map(|is_rejecting| Pod { is_rejecting, ..Pod::default() }),
            delivery: Delivery::default(),
            newest: None,
            capacity,
            writes_left: None,
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Want(items, keep) => self.want(&items, keep),
            Event::Step { stop_after, fault } => {
                self.writes_left = stop_after;
                if self.step(fault).is_err() {
                    self.restart();
                }
                self.writes_left = None;
            }
            Event::Resend => self.delivery.resend(),
            Event::Edit(None) => _ = self.parts.pop_first(),
            Event::Edit(Some(policy)) => {
                let suffix = format!(".cluster.p{policy}");
                let keys = self.parts.values_mut().flat_map(|part| &mut part.data);
                for (_, text) in keys.filter(|(key, _)| key.ends_with(&suffix)) {
                    *text = r#"{"policyVersion":"1","edited":true}"#.into();
                }
            }
        }
    }

    pub(super) fn want(&mut self, items: &Items, keep: Keep) {
        let desired = Desired { items: items.clone(), keep };
        self.newest = Some(desired.clone());
        self.delivery.want(desired);
    }

    /// Takes steps without faults until nothing is left to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..MAX_STEPS {
            if let Ok(true) = self.step(Fault::None) {
                return;
            }
        }
        panic!("not settled after {MAX_STEPS} steps: {self:?}");
    }

    pub(super) fn check_storage(&self) {
        let contents = self.delivery.contents();
        assert!(self.stored().is_equal(&contents), "{self:?}");
        assert_eq!(entries(&contents.items), self.record.acknowledged);
        assert!(self.record.unconfirmed.is_empty() && contents.previous.is_empty(), "{:?}", self.record);
    }

    fn restart(&mut self) {
        self.delivery = Delivery::restore(self.record.clone(), &self.stored());
        if let Some(newest) = self.newest.clone() {
            self.delivery.want(newest);
        }
    }

    /// Takes one step, as the operator does. Returns true if nothing is left to do.
    fn step(&mut self, fault: Fault) -> Result<bool, Stopped> {
        match self.delivery.begin(Duration::MAX) {
            Step::Deliver(update) => {
                self.write_record()?;
                self.write_contents(update.action)?;
                let outcome = self.notify(&update, fault);
                self.count_write()?;
                self.delivery.finish(outcome, 0.5);
                self.write_record()?;
                self.write_contents(Action::Updated)?;
                Ok(false)
            }
            Step::Idle => {
                self.write_contents(Action::Updated)?;
                Ok(true)
            }
            other => panic!("{other:?}"),
        }
    }

    fn count_write(&mut self) -> Result<(), Stopped> {
        match &mut self.writes_left {
            Some(0) => Err(Stopped),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write_record(&mut self) -> Result<(), Stopped> {
        self.count_write()?;
        self.record = self.delivery.record().clone();
        Ok(())
    }

    fn write_contents(&mut self, action: Action) -> Result<(), Stopped> {
        let (contents, stored) = (self.delivery.contents(), self.stored());
        if stored.is_equal(&contents) {
            return Ok(());
        }
        let (timestamp, update_id) = ("T".to_owned(), "U".to_owned());
        let event = StoredEvent { action, timestamp, update_id, policies_count: contents.items.len() };
        let parts = contents.parts_within(self.capacity, &stored.assignments(), &event).unwrap();
        for part in stored.changed(&parts) {
            self.count_write()?;
            self.parts.insert((part.place, part.index), part.clone());
        }
        for key in stored.stale(&parts) {
            self.count_write()?;
            self.parts.remove(&key);
        }
        Ok(())
    }

    fn stored(&self) -> StoredParts {
        StoredParts::read(self.parts.values().cloned())
    }

    fn notify(&mut self, update: &Update, fault: Fault) -> Outcome {
        let is_kept = self.newest.as_ref().is_some_and(|newest| newest.keep == Keep::All);
        let is_rejecting = self.pods.iter().any(|pod| pod.is_rejecting);
        assert!(
            update.removed.is_empty() || !is_kept || is_rejecting,
            "a failed selector removes {:?}",
            update.removed
        );
        let is_bad = update.updated.values().any(is_bad);
        let accepts = |pod: &Pod| !(pod.is_rejecting && is_bad);
        let mut applied = 0;
        for (index, pod) in self.pods.iter_mut().enumerate() {
            let is_reached = match fault {
                Fault::None => true,
                Fault::Lost(reached) => reached[index],
            };
            if is_reached && accepts(pod) {
                pod.apply(update);
                applied += 1;
            }
        }
        match fault {
            Fault::Lost(_) => failed(),
            Fault::None if applied == self.pods.len() => Outcome::Acknowledged,
            Fault::None => rejected(applied > 0),
        }
    }
}

impl Pod {
    /// Applies the changes of an update only: the pod must not need the list of all policies.
    fn apply(&mut self, update: &Update) {
        for (id, item) in &update.updated {
            self.policies.insert(id.clone(), item.entry());
        }
        for id in update.removed.keys() {
            self.policies.remove(id);
        }
    }
}

pub(super) fn entries(items: &Items) -> Entries {
    items.iter().map(|(id, item)| (id.clone(), item.entry())).collect()
}

pub(super) fn is_bad(item: &Item) -> bool {
    item.body().starts_with(&format!("{{\"config\":{BAD},"))
}

/// Returns states of four policies: the content 0 is bad, and some versions are confidential.
pub(super) fn any_state() -> impl Strategy<Value = Items> {
    let item = |(number, generation, content): (u8, i64, i64)| {
        let (name, is_confidential) = (format!("cluster.p{number}"), (i64::from(number) + generation) % 3 == 0);
        let policy = ConfigurationPolicy { is_confidential, ..policy(&name, generation) };
        (id(&name), Item::new(&policy, &json!(content)).unwrap())
    };
    let items = prop::collection::vec((0_u8..4, 1_i64..3, BAD..3), 0..5);
    items.prop_map(move |items| items.into_iter().map(item).collect())
}

pub(super) fn any_event_without_edits() -> impl Strategy<Value = Event> {
    let fault = prop_oneof![2 => Just(Fault::None), 1 => any::<[bool; 2]>().prop_map(Fault::Lost)];
    let step = (prop::option::of(0_usize..8), fault);
    prop_oneof![
        4 => step.prop_map(|(stop_after, fault)| Event::Step { stop_after, fault }),
        3 => any_state().prop_map(|items| Event::Want(items, Keep::default())),
        1 => any_state().prop_map(|items| Event::Want(items, Keep::All)),
        1 => Just(Event::Resend),
    ]
}

pub(super) fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![8 => any_event_without_edits(), 1 => prop::option::of(0_u8..4).prop_map(Event::Edit)]
}
