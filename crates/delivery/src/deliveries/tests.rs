use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;

use proviso_core::configuration::{
    Audience, ConfigurationPolicy, Entries, Item, Items, Keep, MIN_DELAY, Part, Place, StoredParts, Version,
};
use serde_json::{Value, json};

use super::*;

/// A component in memory. Each notification gets the next outcome; without one, it is acknowledged.
#[derive(Default)]
struct Memory {
    record: Mutex<Record>,
    parts: Mutex<Vec<Part>>,
    outcomes: Mutex<VecDeque<Outcome>>,
    /// The key that somebody removes during the next notification.
    removed: Mutex<Option<&'static str>>,
    /// Each notification, and the stored items at its time.
    notified: Mutex<Vec<(Value, Items)>>,
}

impl Component for &Memory {
    type Error = Infallible;

    async fn record(&self) -> Result<Record, Infallible> {
        Ok(self.record.lock().unwrap().clone())
    }

    async fn stored(&self) -> Result<StoredParts, Infallible> {
        Ok(StoredParts::read(self.parts.lock().unwrap().clone()))
    }

    async fn write_record(&self, record: &Record, _: Option<&LastUpdate>) -> Result<(), Infallible> {
        *self.record.lock().unwrap() = record.clone();
        Ok(())
    }

    async fn write_parts(&self, parts: &[&Part], stale: &[(Place, usize)]) -> Result<(), Infallible> {
        let mut stored = self.parts.lock().unwrap();
        for part in parts {
            stored.retain(|it| (it.place, it.index) != (part.place, part.index));
            stored.push((*part).clone());
        }
        stored.retain(|it| !stale.contains(&(it.place, it.index)));
        Ok(())
    }

    async fn notify(&self, notification: &Notification) -> Outcome {
        let items = self.items();
        self.notified.lock().unwrap().push((serde_json::from_str(&notification.to_json()).unwrap(), items));
        if let Some(key) = self.removed.lock().unwrap().take() {
            self.remove(key);
        }
        self.outcomes.lock().unwrap().pop_front().unwrap_or(Outcome::Acknowledged)
    }
}

impl Memory {
    fn items(&self) -> Items {
        StoredParts::read(self.parts.lock().unwrap().clone()).items
    }

    fn acknowledged(&self) -> Entries {
        self.record.lock().unwrap().acknowledged.clone()
    }

    /// Removes a key by hand.
    fn remove(&self, key: &str) {
        for part in &mut *self.parts.lock().unwrap() {
            part.data.remove(key);
        }
    }

    fn answer(&self, outcome: Outcome) {
        self.outcomes.lock().unwrap().push_back(outcome);
    }

    /// Returns the numbers of updated and removed policies in each notification.
    fn changes(&self) -> Vec<(usize, usize)> {
        let count = |message: &Value, list: &str| message[list].as_array().unwrap().len();
        let notified = self.notified.lock().unwrap();
        notified.iter().map(|(it, _)| (count(it, "updated_policies"), count(it, "removed_policies"))).collect()
    }
}

fn desired(policies: &[(&str, i64)]) -> Desired {
    let items = policies.iter().map(|(id, generation)| {
        let policy = ConfigurationPolicy {
            id: id.parse().unwrap(),
            version: Version::of(*generation),
            config_name: "memory".to_owned(),
            owner: None,
            attributes: std::collections::BTreeMap::new(),
            is_confidential: false,
            audience: Audience::All,
        };
        let item = Item::new(&policy, &json!({"generation": generation})).unwrap();
        (policy.id, item)
    });
    Desired { items: items.collect(), ..Desired::default() }
}

fn entries(desired: &Desired) -> Entries {
    desired.items.iter().map(|(id, item)| (id.clone(), item.entry())).collect()
}

/// Advances until the component has every change that it can get, and returns the delays in between.
async fn settle(deliveries: &mut Deliveries<&Memory>) -> Vec<Duration> {
    let mut delays = Vec::new();
    for _ in 0..100 {
        match deliveries.advance().await.unwrap() {
            Next::Idle => return delays,
            Next::Again => {}
            Next::After(delay) => {
                delays.push(delay);
                tokio::time::advance(delay).await;
            }
        }
    }
    panic!("the deliveries do not end: {:?}", deliveries.record());
}

#[tokio::test(start_paused = true)]
async fn policies_are_stored_before_the_notification_and_recorded_after_it() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    let first = desired(&[("cluster.a", 1), ("cluster.b", 1)]);
    deliveries.want(first.clone());
    assert!(settle(&mut deliveries).await.is_empty());
    assert_eq!(memory.acknowledged(), entries(&first));
    let second = desired(&[("cluster.a", 2)]);
    deliveries.want(second.clone());
    settle(&mut deliveries).await;
    assert_eq!(memory.changes(), [(2, 0), (1, 1)]);
    let stored: Vec<_> = memory.notified.lock().unwrap().iter().map(|(_, items)| items.clone()).collect();
    assert_eq!(stored, [first.items, second.items.clone()]);
    assert_eq!(memory.acknowledged(), entries(&second));
    // Only the event and the item are left.
    let keys: Vec<_> = memory.parts.lock().unwrap().iter().flat_map(|part| part.data.keys().cloned()).collect();
    assert_eq!(keys, ["event", "items.cluster.a"]);
    assert_eq!(deliveries.last().unwrap().result, Some(UpdateResult::Acknowledged));
}

#[tokio::test(start_paused = true)]
async fn a_component_without_policies_has_an_event_and_gets_no_notification() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    deliveries.want(Desired::default());
    settle(&mut deliveries).await;
    assert_eq!(memory.changes(), []);
    let event: Value = serde_json::from_str(&memory.parts.lock().unwrap()[0].data["event"]).unwrap();
    assert_eq!((&event["action"], &event["policies_count"]), (&json!("gathered"), &json!(0)));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_policy_leaves_the_last_good_body() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    let good = desired(&[("cluster.a", 1)]);
    deliveries.want(good.clone());
    settle(&mut deliveries).await;
    memory.answer(Outcome::Rejected { message: "exit code 3".to_owned(), is_partly_applied: false });
    deliveries.want(desired(&[("cluster.a", 2)]));
    settle(&mut deliveries).await;
    assert_eq!(memory.items(), good.items);
    assert_eq!(memory.acknowledged(), entries(&good));
    assert_eq!(deliveries.last().unwrap().result, Some(UpdateResult::Rejected));
    // The rejected version is not sent again, and a newer one is.
    settle(&mut deliveries).await;
    assert_eq!(memory.changes().len(), 2);
    let newer = desired(&[("cluster.a", 3)]);
    deliveries.want(newer.clone());
    settle(&mut deliveries).await;
    assert_eq!(memory.acknowledged(), entries(&newer));
}

#[tokio::test(start_paused = true)]
async fn a_failed_notification_is_sent_again_after_a_delay() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    memory.answer(Outcome::Failed { message: "no connection".to_owned() });
    let wanted = desired(&[("cluster.a", 1)]);
    deliveries.want(wanted.clone());
    let delays = settle(&mut deliveries).await;
    assert!(!delays.is_empty() && delays.iter().all(|delay| *delay <= MIN_DELAY), "{delays:?}");
    assert_eq!(memory.changes(), [(1, 0), (1, 0)]);
    assert_eq!(memory.acknowledged(), entries(&wanted));
}

#[tokio::test(start_paused = true)]
async fn an_edit_by_hand_is_repaired_and_sent_again() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    let wanted = desired(&[("cluster.a", 1), ("cluster.b", 1)]);
    deliveries.want(wanted.clone());
    settle(&mut deliveries).await;
    memory.remove("items.cluster.b");
    settle(&mut deliveries).await;
    assert_eq!(memory.items(), wanted.items);
    assert_eq!(memory.changes(), [(2, 0), (1, 0)]);
    // The next edits wait longer and longer.
    let mut delays = Vec::new();
    for _ in 0..3 {
        memory.parts.lock().unwrap().clear();
        delays.push(settle(&mut deliveries).await.iter().sum::<Duration>());
        assert_eq!(memory.items(), wanted.items);
    }
    assert!(delays[0] >= MIN_DELAY / 2 && delays[2] >= 2 * MIN_DELAY, "{delays:?}");
}

#[tokio::test(start_paused = true)]
async fn an_edit_during_an_update_is_sent_again() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    deliveries.want(desired(&[("cluster.a", 1), ("cluster.b", 1)]));
    settle(&mut deliveries).await;
    *memory.removed.lock().unwrap() = Some("items.cluster.b");
    let wanted = desired(&[("cluster.a", 2), ("cluster.b", 1)]);
    deliveries.want(wanted.clone());
    settle(&mut deliveries).await;
    assert_eq!(memory.items(), wanted.items);
    // The component may have read its policies without the removed one.
    assert_eq!(memory.changes(), [(2, 0), (1, 0), (1, 0)]);
    assert_eq!(memory.acknowledged(), entries(&wanted));
}

#[tokio::test(start_paused = true)]
async fn an_edit_does_not_lose_the_last_good_body() {
    for is_rejected in [true, false] {
        let memory = Memory::default();
        let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
        let good = desired(&[("cluster.a", 1)]);
        deliveries.want(good.clone());
        settle(&mut deliveries).await;
        if is_rejected {
            memory.answer(Outcome::Rejected { message: "exit code 3".to_owned(), is_partly_applied: false });
            deliveries.want(desired(&[("cluster.a", 2)]));
        } else {
            // A selector fails.
            deliveries.want(Desired { items: Items::new(), keep: Keep::All });
        }
        settle(&mut deliveries).await;
        memory.remove("items.cluster.a");
        settle(&mut deliveries).await;
        assert_eq!(memory.items(), good.items, "an edit: {is_rejected}");
        memory.parts.lock().unwrap().clear();
        settle(&mut deliveries).await;
        assert_eq!(memory.items(), good.items, "a deletion: {is_rejected}");
        assert_eq!(memory.acknowledged(), entries(&good));
    }
}

#[tokio::test(start_paused = true)]
async fn keys_of_others_are_removed_with_growing_delays() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    deliveries.want(desired(&[("cluster.a", 1)]));
    settle(&mut deliveries).await;
    let mut delays = Vec::new();
    for _ in 0..4 {
        memory.parts.lock().unwrap()[0].data.insert("stray".to_owned(), "".into());
        delays.push(settle(&mut deliveries).await.iter().sum::<Duration>());
        assert!(!memory.parts.lock().unwrap()[0].data.contains_key("stray"));
    }
    assert!(delays[0].is_zero() && delays[1] >= MIN_DELAY / 2 && delays[3] >= 2 * MIN_DELAY, "{delays:?}");
    assert_eq!(memory.changes().len(), 1, "the component is not notified");
}

#[tokio::test(start_paused = true)]
async fn a_restart_resumes_from_the_record() {
    let memory = Memory::default();
    let mut deliveries = Deliveries::restore(&memory, None).await.unwrap();
    let wanted = desired(&[("cluster.a", 1)]);
    deliveries.want(wanted.clone());
    settle(&mut deliveries).await;
    let mut again = Deliveries::restore(&memory, deliveries.last().cloned()).await.unwrap();
    again.want(wanted.clone());
    settle(&mut again).await;
    assert_eq!(memory.changes().len(), 1, "an acknowledged policy is not sent again");
    again.resend().await.unwrap();
    assert_eq!(memory.record.lock().unwrap().unconfirmed.len(), 1, "a restart does not lose the resend");
    settle(&mut again).await;
    assert_eq!(memory.changes(), [(1, 0), (1, 0)]);
}
