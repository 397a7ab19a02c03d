//! The `ConfigMap`s and Secrets that store the policies of a component: the keys, and the division over several objects below the size
//! limit of Kubernetes.

mod assignment;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;

use super::body::Item;
use super::delta::Items;
use super::notification::Event;
use crate::policy_id::PolicyId;

use assignment::CAPACITY;
pub use assignment::{Assignment, MAX_PART};

/// The key of the event. It is in the first `ConfigMap`.
pub const EVENT_KEY: &str = "event";
/// The prefix of the keys of policy bodies: `items.<policy id>`. A key of a `ConfigMap` cannot contain the slash of Consul's
/// `items/<policy id>`.
pub const ITEM_PREFIX: &str = "items.";
/// The prefix of the keys of the bodies that the component has acknowledged last, while an update of them is not acknowledged.
pub const PREVIOUS_PREFIX: &str = "previous.";

/// The policies to store for a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub items: Items,
    /// The last acknowledged bodies of the policies whose update or removal is not acknowledged. They survive a restart of the
    /// operator, so that a rejected policy can be put back.
    pub previous: Items,
}

/// The kind of an object that stores policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    ConfigMap,
    /// For bodies that are confidential.
    Secret,
}

/// One object that stores a part of the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub place: Place,
    /// The number of the part, from 0. See [`part_name`].
    pub index: usize,
    pub data: BTreeMap<String, Arc<str>>,
}

/// The parts in which the keys are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    pub config_maps: Assignment,
    pub secrets: Assignment,
}

/// The stored policies of a component, read from its `ConfigMap`s and Secrets.
#[derive(Clone, Debug, Default)]
pub struct StoredParts {
    pub parts: Vec<Part>,
    /// The readable bodies under `items.`. A key that is in several parts, after an interrupted write, counts once.
    pub items: Items,
    /// All readable bodies, under `items.` and `previous.`.
    bodies: BTreeMap<PolicyId, Vec<Item>>,
}

/// Returns the name of an object. The first one has the name in the subscription (`delivery.configMap`), and the others have a number
/// after it: `<name>-1`. The Secrets have the same names.
#[must_use]
pub fn part_name(config_map: &str, index: usize) -> String {
    if index == 0 { config_map.to_owned() } else { format!("{config_map}-{index}") }
}

/// Returns the number of the part that has this name; `None` if no part of a subscription with this `delivery.configMap` has the name.
/// Two subscriptions of a namespace are in conflict if the name of one is the name of a part of the other.
#[must_use]
pub fn part_index(config_map: &str, name: &str) -> Option<usize> {
    let Some(suffix) = name.strip_prefix(config_map)?.strip_prefix('-') else {
        return (name == config_map).then_some(0);
    };
    let index = suffix.parse().ok().filter(|index| *index > 0)?;
    (part_name(config_map, index) == name).then_some(index)
}

impl Contents {
    /// Returns the parts to write, in the order in which they must be written: the part with the event is the last one. A reader that
    /// sees the new event can read all policies. A key keeps the part of `current` as long as the part has room.
    ///
    /// # Errors
    /// Returns an error if the event cannot be serialized.
    pub fn parts(&self, current: &Assignments, event: &Event) -> Result<Vec<Part>, serde_json::Error> {
        self.parts_within(CAPACITY, current, event)
    }

    /// Returns the parts, each with keys and values of at most `capacity` bytes.
    pub(super) fn parts_within(
        &self,
        capacity: usize,
        current: &Assignments,
        event: &Event,
    ) -> Result<Vec<Part>, serde_json::Error> {
        let event: Arc<str> = serde_json::to_string(event)?.into();
        let mut parts = Vec::new();
        for (place, current) in [(Place::Secret, &current.secrets), (Place::ConfigMap, &current.config_maps)] {
            let values = self.values(place);
            let sizes = values.iter().map(|(key, value)| (key.clone(), assignment::size(key, value))).collect();
            let assignment = assignment::assign(current, &sizes, capacity);
            let mut data: BTreeMap<usize, BTreeMap<String, Arc<str>>> = BTreeMap::new();
            if place == Place::ConfigMap {
                data.entry(0).or_default().insert(EVENT_KEY.to_owned(), Arc::clone(&event));
            }
            for (key, value) in values {
                let index = assignment.get(&key).copied().unwrap_or_default();
                data.entry(index).or_default().insert(key, value);
            }
            parts.extend(data.into_iter().rev().map(|(index, data)| Part { place, index, data }));
        }
        Ok(parts)
    }

    /// Returns the keys and values of one kind of objects, without the event.
    fn values(&self, place: Place) -> BTreeMap<String, Arc<str>> {
        let of = |items: &Items, prefix: &'static str| -> Vec<(String, Arc<str>)> {
            let items = items.iter().filter(|(_, item)| item.is_confidential() == (place == Place::Secret));
            items.map(|(id, item)| (format!("{prefix}{id}"), Arc::clone(item.body()))).collect()
        };
        of(&self.items, ITEM_PREFIX).into_iter().chain(of(&self.previous, PREVIOUS_PREFIX)).collect()
    }
}

impl StoredParts {
    /// Reads the stored policies. Unknown keys and unreadable bodies, for example after an edit by hand, are left out.
    #[must_use]
    pub fn read(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort_by_key(|part| (part.place, part.index));
        let mut stored = Self::default();
        for part in &parts {
            for (key, text) in &part.data {
                let (is_item, id) = match (key.strip_prefix(ITEM_PREFIX), key.strip_prefix(PREVIOUS_PREFIX)) {
                    (Some(id), _) => (true, id),
                    (None, Some(id)) => (false, id),
                    (None, None) => continue,
                };
                let (Ok(id), Ok(item)) = (id.parse::<PolicyId>(), Item::read(text, part.place == Place::Secret)) else {
                    continue;
                };
                if is_item {
                    stored.items.entry(id.clone()).or_insert_with(|| item.clone());
                }
                stored.bodies.entry(id).or_default().push(item);
            }
        }
        Self { parts, ..stored }
    }

    /// Returns the stored bodies of a policy, the current one and the previous one.
    pub(super) fn bodies(&self, id: &PolicyId) -> &[Item] {
        self.bodies.get(id).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns true if an event is stored: the policies of the component were written before.
    #[must_use]
    pub fn has_event(&self) -> bool {
        self.parts.iter().any(|part| part.data.contains_key(EVENT_KEY))
    }

    /// Returns the parts in which the keys are stored. A key that is in several parts stays in the first one.
    #[must_use]
    pub fn assignments(&self) -> Assignments {
        let of = |place| {
            let parts = self.parts.iter().rev().filter(|part| part.place == place);
            let keys = parts.flat_map(|part| part.data.keys().map(|key| (key.clone(), part.index)));
            keys.filter(|(key, _)| key != EVENT_KEY).collect()
        };
        Assignments { config_maps: of(Place::ConfigMap), secrets: of(Place::Secret) }
    }

    /// Returns true if exactly these contents are stored, with an event that counts them. False after an edit by hand.
    #[must_use]
    pub fn is_equal(&self, contents: &Contents) -> bool {
        #[derive(Deserialize)]
        struct Count {
            policies_count: usize,
        }
        let mut events = 0;
        let mut stored = BTreeSet::new();
        for part in &self.parts {
            for (key, value) in &part.data {
                if key == EVENT_KEY {
                    let count = serde_json::from_str(value).ok().map(|Count { policies_count }| policies_count);
                    if part.place != Place::ConfigMap || part.index != 0 || count != Some(contents.items.len()) {
                        return false;
                    }
                    events += 1;
                } else if !stored.insert((part.place, key.as_str(), &**value)) {
                    return false;
                }
            }
        }
        let values = [Place::ConfigMap, Place::Secret].map(|place| (place, contents.values(place)));
        let desired = values
            .iter()
            .flat_map(|(place, values)| values.iter().map(|(key, value)| (*place, key.as_str(), &**value)));
        events == 1 && stored == desired.collect()
    }

    /// Returns the parts that are not stored yet, or are stored with other data. Only they must be written.
    pub fn changed<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = &'a Part> {
        parts.iter().filter(|part| !self.parts.contains(part))
    }

    /// Returns the objects that exist and are not among `parts`. They must be deleted after `parts` are written.
    #[must_use]
    pub fn stale(&self, parts: &[Part]) -> Vec<(Place, usize)> {
        let is_written =
            |stored: &&Part| parts.iter().any(|part| (part.place, part.index) == (stored.place, stored.index));
        self.parts.iter().filter(|stored| !is_written(stored)).map(|part| (part.place, part.index)).collect()
    }
}

#[cfg(test)]
mod tests;
