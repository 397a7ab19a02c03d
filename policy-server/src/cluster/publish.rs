//! Publishes the revisions of the cluster.

use super::Follower;
use super::object::Object;
use crate::lifecycle::{Publication, Slot, View};
use crate::table::{ListedRevision, Origin, RolloutState};

impl Follower {
    /// Replaces the table if the revisions or their states have changed.
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
            unready_reason: self.unready_reason(),
            ..Publication::default()
        };
        let mut listed = Vec::with_capacity(self.objects.len());
        for (name, object) in &self.objects {
            let slot = self.lifecycle.get(name);
            if let (Ok(revision), Some(role)) = (&object.observed.desired, object.role(slot)) {
                let (policy, generation) = (&revision.policy, revision.generation);
                publication.revisions.push(View { policy, generation, role, slot });
            }
            if let Some(slot) = slot {
                publication.modules.extend(object.modules().chain(slot.modules()));
            }
            if let Some(error) = object.report_error() {
                publication.problems.push(format!("{name}: its status cannot be written: {error}"));
            }
            let state = slot.map_or(RolloutState::Disabled, Slot::state);
            publication.failing += usize::from(matches!(state, RolloutState::Failed(_)));
            listed.push(ListedRevision { name: name.clone(), state });
        }
        publication.origin = Origin::Cluster(listed);
        publication
    }

    /// Returns the reason why this replica is not ready: it cannot load a live revision that another replica serves. A live
    /// revision that no replica serves does not make the replica unready: then the replica denies the requests of that revision,
    /// and keeps serving the others.
    fn unready_reason(&self) -> Option<String> {
        self.objects.iter().filter(|(_, object)| object.is_live_elsewhere()).find_map(|(name, _): (_, &Object)| {
            let failure = self.lifecycle.get(name).and_then(Slot::failure)?;
            Some(format!("{name} is live, and not served here: {failure}"))
        })
    }
}
