//! Publishes the revisions of the cluster.

use super::Follower;
use super::object::Object;
use crate::lifecycle::{Publication, Slot, View};
use crate::table::{Listed, Origin, Standing};

impl Follower {
    /// Writes the table, if it is older than the revisions.
    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let snapshot = self.publication().into_snapshot();
        if let Some(used) = self.publisher.publish(snapshot) {
            self.lifecycle.preparer().modules.retain(&used);
        }
    }

    fn publication(&self) -> Publication<'_> {
        let mut publication = Publication {
            namespaces: self.namespaces.clone().unwrap_or_default(),
            has_listed: self.has_listed && self.namespaces.is_some(),
            unready: self.unready(),
            ..Publication::default()
        };
        let mut listed = Vec::with_capacity(self.objects.len());
        for (name, object) in &self.objects {
            let slot = self.lifecycle.get(name);
            if let (Ok(wanted), Some(role)) = (&object.seen.wanted, object.role(slot)) {
                let (policy, generation) = (&wanted.policy, wanted.generation);
                publication.revisions.push(View { policy, generation, role, slot });
            }
            if let Some(slot) = slot {
                publication.modules.extend(object.modules().chain(slot.modules()));
            }
            if let Some(why) = object.report_trouble() {
                publication.problems.push(format!("{name}: its status cannot be written: {why}"));
            }
            let standing = slot.map_or(Standing::Disabled, Slot::standing);
            publication.failing += usize::from(matches!(standing, Standing::Failed(_)));
            listed.push(Listed { name: name.clone(), standing });
        }
        publication.origin = Origin::Cluster(listed);
        publication
    }

    /// The live revision that others serve and this replica cannot. A revision that no replica serves is no reason to leave:
    /// this replica denies what that revision would have to decide, and goes on serving the others.
    fn unready(&self) -> Option<String> {
        self.objects.iter().filter(|(_, object)| object.is_missed()).find_map(|(name, _): (_, &Object)| {
            let failure = self.lifecycle.get(name).and_then(Slot::failure)?;
            Some(format!("{name} is live, and not served here: {failure}"))
        })
    }
}
