//! The changes that a component must get next.

use std::collections::BTreeMap;

use super::{Change, Delivery, LastKnown, Update};
use crate::configuration::body::Item;
use crate::configuration::delta::Items;
use crate::configuration::notification::Action;
use crate::policy_id::PolicyId;

/// A change of a policy, with its body.
#[derive(Clone, Debug)]
pub(super) enum Next {
    To(Item),
    Removal,
}

impl Next {
    /// Returns the change without the body.
    pub(super) fn record(&self) -> Change {
        match self {
            Self::To(item) => Change::To(item.entry()),
            Self::Removal => Change::Removal,
        }
    }
}

impl Delivery {
    /// Returns the changes that the component must get: the difference between the desired and the acknowledged state, and the
    /// unconfirmed policies again. A rejected change is left out. If its policy is unconfirmed, the component gets the acknowledged
    /// body back instead.
    pub(super) fn changes(&self) -> BTreeMap<PolicyId, Next> {
        let record = &self.record;
        // Without a resolution, nothing is known to be gone.
        let Some(desired) = &self.desired else {
            return BTreeMap::new();
        };
        let ids = desired.items.keys().chain(record.acknowledged.keys()).chain(&record.unconfirmed);
        let mut changes = BTreeMap::new();
        for id in ids {
            if changes.contains_key(id) {
                continue;
            }
            let is_unconfirmed = record.unconfirmed.contains(id);
            let is_allowed = |change: &Next| !self.is_rejected(id, &change.record());
            let change = match self.desired_change(id) {
                Some(change) if is_allowed(&change) => Some(change),
                Some(_) if is_unconfirmed => self.change_back(id).filter(is_allowed),
                _ => None,
            };
            let is_needed = |change: &Next| is_unconfirmed || !self.is_acknowledged(id, &change.record());
            if let Some(change) = change.filter(is_needed) {
                changes.insert(id.clone(), change);
            }
        }
        changes
    }

    /// Returns the change to the desired state; `None` if the policy stays at a body that is not known.
    fn desired_change(&self, id: &PolicyId) -> Option<Next> {
        let desired = self.desired.as_ref()?;
        match desired.items.get(id) {
            Some(item) => Some(Next::To(item.clone())),
            None if desired.keep.contains(id) => {
                let is_acknowledged = self.record.acknowledged.contains_key(id);
                let bodies = if is_acknowledged { &self.acknowledged } else { &self.attempted };
                bodies.get(id).cloned().map(Next::To)
            }
            None => Some(Next::Removal),
        }
    }

    /// Returns the change to the acknowledged state; `None` if the acknowledged body is not known.
    fn change_back(&self, id: &PolicyId) -> Option<Next> {
        if self.record.acknowledged.contains_key(id) {
            self.acknowledged.get(id).cloned().map(Next::To)
        } else {
            Some(Next::Removal)
        }
    }

    /// Returns true if the component has acknowledged the state after this change.
    fn is_acknowledged(&self, id: &PolicyId, change: &Change) -> bool {
        match (self.record.acknowledged.get(id), change) {
            (Some(entry), Change::To(to)) => entry == to,
            (None, Change::Removal) => true,
            _ => false,
        }
    }

    fn is_rejected(&self, id: &PolicyId, change: &Change) -> bool {
        self.record
            .rejected
            .get(id)
            .is_some_and(|rejected| rejected.iter().any(|rejection| rejection.change == *change))
    }

    /// Removes the rejections of changes that lead neither to the desired nor to the acknowledged state.
    pub(super) fn forget_old_rejections(&mut self) {
        let mut rejected = std::mem::take(&mut self.record.rejected);
        rejected.retain(|id, rejections| {
            let desired = self.desired_change(id).map(|change| change.record());
            rejections.retain(|rejection| {
                desired.as_ref() == Some(&rejection.change) || self.is_acknowledged(id, &rejection.change)
            });
            !rejections.is_empty()
        });
        self.record.rejected = rejected;
    }

    /// Returns the update with these changes.
    pub(super) fn update(&self, changes: BTreeMap<PolicyId, Next>) -> Update {
        let mut update = Update {
            action: if self.has_event { Action::Updated } else { Action::Gathered },
            updated: Items::new(),
            removed: BTreeMap::new(),
            target: self.acknowledged.clone(),
            previous: Items::new(),
            was_unconfirmed: self.record.unconfirmed.iter().filter(|id| changes.contains_key(*id)).cloned().collect(),
        };
        for (id, change) in changes {
            let acknowledged = self.acknowledged.get(&id);
            if let Some(item) = acknowledged {
                update.previous.insert(id.clone(), item.clone());
            }
            match change {
                Next::To(item) => {
                    update.target.insert(id.clone(), item.clone());
                    update.updated.insert(id, item);
                }
                Next::Removal => {
                    let last = match (acknowledged, self.record.acknowledged.get(&id)) {
                        (Some(item), _) => LastKnown::Body(item.clone()),
                        (None, Some(entry)) => LastKnown::Version(entry.version.clone()),
                        (None, None) => LastKnown::Unknown,
                    };
                    update.target.remove(&id);
                    update.removed.insert(id, last);
                }
            }
        }
        update
    }
}
