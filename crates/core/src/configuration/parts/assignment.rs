//! Assigns the keys of a component to objects below the size limit of Kubernetes.

use std::collections::BTreeMap;

use super::{ITEM_PREFIX, PREVIOUS_PREFIX};

/// The maximum size of an object, in bytes: 1 MiB, the limit of the API server for the values of a `ConfigMap` or a Secret.
pub const MAX_PART: usize = 1024 * 1024;
/// The part of an object that is reserved for its metadata and the event, in bytes.
const RESERVED: usize = 16 * 1024;
/// The size of the keys and values in one object, in bytes.
pub(super) const CAPACITY: usize = MAX_PART - RESERVED;
/// The size that each key adds besides its characters, in bytes: the encoding, and the entry in `managedFields`.
const KEY_OVERHEAD: usize = 64;

/// The parts by key.
pub type Assignment = BTreeMap<String, usize>;

/// Returns the size of a key and its value in an object. `managedFields` repeats the key.
pub(super) fn size(key: &str, value: &str) -> usize {
    2 * key.len() + value.len() + KEY_OVERHEAD
}

/// Assigns keys to parts. A key stays in the part that `current` names. If the keys of a part have grown beyond its capacity, the largest
/// ones move: at most as many as have grown. A key that has no part goes to the first part with room, by preference to the part of
/// the other body of its policy. A key that is larger than `capacity` has a part of its own.
pub(super) fn assign(current: &Assignment, sizes: &BTreeMap<String, usize>, capacity: usize) -> Assignment {
    let mut staying: BTreeMap<usize, Vec<(usize, &String)>> = BTreeMap::new();
    let mut moving = Vec::new();
    for (key, size) in sizes {
        match current.get(key) {
            Some(part) => staying.entry(*part).or_default().push((*size, key)),
            None => moving.push((key, *size)),
        }
    }
    let mut assignment = Assignment::new();
    let mut used: BTreeMap<usize, usize> = BTreeMap::new();
    let has_room = |part: usize, size: usize, used: &BTreeMap<usize, usize>| {
        used.get(&part).is_none_or(|used| used + size <= capacity)
    };
    for (part, mut keys) in staying {
        keys.sort_unstable();
        for (size, key) in keys {
            if has_room(part, size, &used) {
                put(&mut assignment, &mut used, key, part, size);
            } else {
                moving.push((key, size));
            }
        }
    }
    // The previous body of a policy takes the place of the current one: one write then replaces both.
    moving.sort_unstable_by_key(|(key, _)| (!key.starts_with(PREVIOUS_PREFIX), *key));
    for (key, size) in moving {
        let other = other_body(key);
        let beside =
            |parts: &Assignment| parts.get(other.as_ref()?).copied().filter(|part| has_room(*part, size, &used));
        let preferred = beside(current).or_else(|| beside(&assignment));
        // A part that is not used has room for every key, so that the search ends.
        let first = || (0..=used.len()).find(|part| has_room(*part, size, &used)).unwrap_or(used.len());
        let part = preferred.unwrap_or_else(first);
        put(&mut assignment, &mut used, key, part, size);
    }
    assignment
}

fn put(assignment: &mut Assignment, used: &mut BTreeMap<usize, usize>, key: &str, part: usize, size: usize) {
    assignment.insert(key.to_owned(), part);
    *used.entry(part).or_default() += size;
}

/// Returns the key of the current body for the key of a previous body, and the key of the previous body for the key of a current one.
fn other_body(key: &str) -> Option<String> {
    match key.strip_prefix(PREVIOUS_PREFIX) {
        Some(id) => Some(format!("{ITEM_PREFIX}{id}")),
        None => Some(format!("{PREVIOUS_PREFIX}{}", key.strip_prefix(ITEM_PREFIX)?)),
    }
}

#[cfg(test)]
mod tests;
