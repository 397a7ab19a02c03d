//! What others see of the revisions: the table and the gauges.

use std::collections::HashMap;
use std::sync::Arc;

use proviso_core::PolicyId;

use super::Follower;
use super::slot::{Outcome, Slot};
use crate::table::{Entry, Experiment, Listed, Origin, Standing, Table};

impl Follower {
    /// Writes the table, if it is older than what stands here.
    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let has_listed = self.has_listed && self.namespaces.is_some();
        self.is_complete |= has_listed && self.slots.values().all(Slot::is_tried);
        self.table.store(self.to_table());
        let loaded = self.slots.values().filter(|slot| slot.outcome().is_some()).flat_map(Slot::modules).collect();
        self.preparations.preparer().modules.retain(&loaded);
        let failing = self.slots.values().filter(|slot| matches!(slot.standing(), Standing::Failed(_))).count();
        self.metrics.failing.set(failing.try_into().unwrap_or(i64::MAX));
    }

    pub(super) fn to_table(&self) -> Table {
        let mut policies: HashMap<PolicyId, Entry> = HashMap::new();
        let mut experiments: HashMap<PolicyId, Vec<Arc<Experiment>>> = HashMap::new();
        for slot in self.slots.values() {
            let Ok(wanted) = &slot.seen.wanted else { continue };
            if wanted.experiment.is_some() {
                let of_policy = experiments.entry(wanted.policy.clone()).or_default();
                of_policy.extend(slot.experiment().map(Arc::clone));
                continue;
            }
            // A policy is known also while nothing of it is loaded.
            let entry = policies.entry(wanted.policy.clone()).or_default();
            let is_live = slot.seen.reported.is_live;
            entry.lacks_live |= is_live && !matches!(slot.outcome(), Some(Outcome::Loaded { .. }));
            match slot.outcome() {
                Some(Outcome::Loaded { revision, .. }) if is_live => {
                    // While the operator moves from one to the next there may be two.
                    let newest = entry.live.take_if(|live| live.generation < revision.generation);
                    entry.others.extend(newest);
                    match &entry.live {
                        None => entry.live = Some(Arc::clone(revision)),
                        Some(_) => entry.others.push(Arc::clone(revision)),
                    }
                }
                Some(Outcome::Loaded { revision, .. }) => entry.others.push(Arc::clone(revision)),
                Some(Outcome::Failed { failure, .. }) => entry.failed.push((wanted.generation, failure.clone())),
                None if wanted.is_enabled => entry.expected.push(wanted.generation),
                None => {}
            }
        }
        for (policy, active) in experiments {
            policies.entry(policy).or_default().experiments = active.into();
        }
        let listed = self.slots.iter().map(|(name, slot)| Listed { name: name.clone(), standing: slot.standing() });
        let untold = self.slots.iter().filter_map(|(name, slot)| Some((name, slot.report_trouble()?)));
        Table {
            policies,
            namespaces: self.namespaces.clone().unwrap_or_default(),
            origin: Origin::Cluster(listed.collect()),
            problems: untold.map(|(name, why)| format!("{name}: its status cannot be written: {why}")).collect(),
            idle_experiments: Vec::new(),
            is_complete: self.is_complete,
            unready: self.unready(),
        }
    }

    /// The live revision that others serve and this replica cannot. One that nobody serves is no reason to leave: this
    /// replica denies what it would have to decide, and goes on serving the others.
    fn unready(&self) -> Option<String> {
        let mut slots = self.slots.iter();
        slots.find_map(|(name, slot)| match slot.outcome() {
            Some(Outcome::Failed { failure, .. }) if slot.is_missed() => {
                Some(format!("{name} is live, and not served here: {failure}"))
            }
            _ => None,
        })
    }
}
