//! The difference between the policies that a component has and the policies that it should have.

use std::collections::{BTreeMap, BTreeSet};

use super::body::{Digest, Item};
use super::policy::Version;
use crate::policy_id::PolicyId;

/// The version of a policy, and the digest of its body. Two bodies are the same if both are equal: a body that a template computes
/// changes without a new generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pub version: Version,
    pub digest: Digest,
}

/// The policies of a component without their bodies.
pub type Entries = BTreeMap<PolicyId, Entry>;
/// The policies of a component with their bodies.
pub type Items = BTreeMap<PolicyId, Item>;

/// The policies that a component should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The selected policies whose bodies are known.
    pub items: Items,
    /// The policies of the component that stay as they are although they are not in `items`.
    pub keep: Keep,
}

/// The policies of a component that stay as they are, because a failure hides if, or with which body, the component should have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// These policies, for example a policy whose newest body is too large.
    Only(BTreeSet<PolicyId>),
    /// All policies: a selector of the subscription has failed, and may select any of them.
    All,
}

/// The changes from the policies that a component has to the policies that it should have. Each policy is in one of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The policies that the component gets for the first time, or with another version or digest. A policy that was deleted and
    /// created again is one of them.
    pub updated: BTreeSet<PolicyId>,
    /// The policies that are gone for good: no version of them is selected any more.
    pub removed: BTreeSet<PolicyId>,
    pub unchanged: BTreeSet<PolicyId>,
    /// The policies that stay as they are because of a failure ([`Keep`]).
    pub kept: BTreeSet<PolicyId>,
}

impl Default for Keep {
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

impl Keep {
    #[must_use]
    pub fn contains(&self, id: &PolicyId) -> bool {
        match self {
            Self::Only(ids) => ids.contains(id),
            Self::All => true,
        }
    }
}

impl Delta {
    /// Compares the policies that a component has with the desired policies.
    #[must_use]
    pub fn between(has: &Entries, desired: &Desired) -> Self {
        let mut delta = Self::default();
        for (id, item) in &desired.items {
            let set = if has.get(id) == Some(&item.entry()) { &mut delta.unchanged } else { &mut delta.updated };
            set.insert(id.clone());
        }
        for id in has.keys().filter(|id| !desired.items.contains_key(id)) {
            let set = if desired.keep.contains(id) { &mut delta.kept } else { &mut delta.removed };
            set.insert(id.clone());
        }
        delta
    }

    /// Returns true if the component has what it should have.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.updated.is_empty() && self.removed.is_empty()
    }

    /// Returns the policies that the component has after these changes, from the policies that it has before.
    #[must_use]
    pub fn apply(&self, has: &Entries, desired: &Desired) -> Entries {
        let mut entries = has.clone();
        entries.retain(|id, _| !self.removed.contains(id));
        let updated = self.updated.iter().filter_map(|id| Some((id.clone(), desired.items.get(id)?.entry())));
        entries.extend(updated);
        entries
    }
}

#[cfg(test)]
mod tests;
