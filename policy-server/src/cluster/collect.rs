//! The garbage collection of the shared cache: the leader removes the files that no revision uses.

use std::collections::HashSet;
use std::time::Duration;

use proviso_artifacts::Digest;

use super::Follower;
use super::object::Object;

/// The minimum age of removed files. A newer file may belong to a revision that this replica has not observed yet.
const MIN_AGE: Duration = Duration::from_hours(1);

impl Follower {
    /// Removes unused files in the background. Files of disabled revisions are kept, because a rollback enables such a revision.
    pub(super) fn collect(&self) {
        let Some(cache) = self.lifecycle.preparer().cache.clone() else { return };
        if !self.has_listed || !self.leadership.is_leader() {
            return;
        }
        let pinned = self.objects.values().flat_map(Object::modules);
        let used: HashSet<Digest> = pinned.chain(self.lifecycle.slots().flat_map(|(_, slot)| slot.modules())).collect();
        tokio::spawn(async move {
            match cache.run(move |cache| cache.retain(&used, MIN_AGE)).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed unused files from the cache"),
                Err(error) => {
                    tracing::warn!(reason = error.reason().as_str(), %error, "cannot remove unused files from the cache");
                }
            }
        });
    }
}
