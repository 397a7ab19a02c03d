//! One update of a component: the changes, and the state of the component after them.

use std::collections::{BTreeMap, BTreeSet};

use super::Change;
use crate::configuration::body::Item;
use crate::configuration::delta::Items;
use crate::configuration::notification::{Action, Event};
use crate::configuration::parts::Contents;
use crate::configuration::policy::Version;
use crate::policy_id::PolicyId;

/// An update of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    pub action: Action,
    /// The policies that the component gets, with their new bodies.
    pub updated: Items,
    /// The policies that the component loses.
    pub removed: BTreeMap<PolicyId, LastKnown>,
    /// The policies that the component has after the update.
    pub target: Items,
    /// The acknowledged bodies of the policies in `updated` and `removed`, as far as they are known.
    pub previous: Items,
    /// The policies of the update that were unconfirmed before it.
    pub(super) was_unconfirmed: BTreeSet<PolicyId>,
}

/// The last known body of a removed policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastKnown {
    Body(Item),
    /// Only the version is known.
    Version(Version),
    /// The component has never acknowledged a version of the policy.
    Unknown,
}

impl Update {
    /// Returns the ids of the policies that change.
    pub fn ids(&self) -> impl Iterator<Item = &PolicyId> {
        self.updated.keys().chain(self.removed.keys())
    }

    /// Returns the changes of the policies.
    pub fn changes(&self) -> impl Iterator<Item = (PolicyId, Change)> {
        let updated = self.updated.iter().map(|(id, item)| (id.clone(), Change::To(item.entry())));
        updated.chain(self.removed.keys().map(|id| (id.clone(), Change::Removal)))
    }

    /// Returns the contents to store before the component is notified.
    #[must_use]
    pub fn contents(&self) -> Contents {
        Contents { items: self.target.clone(), previous: self.previous.clone() }
    }

    /// Returns the event of the update, with the time (RFC 3339) and the UUID of the caller.
    #[must_use]
    pub fn event(&self, timestamp: String, update_id: String) -> Event {
        Event { action: self.action, timestamp, update_id, policies_count: self.target.len() }
    }
}
