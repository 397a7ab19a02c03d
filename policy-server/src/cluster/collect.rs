//! The upkeep of the shared cache by the leader: it removes the files that no revision uses, and stores missing compiled modules.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::Digest;

use super::Follower;
use super::object::Object;

/// The minimum age of removed files. A newer file may belong to a revision that this replica has not observed yet.
const MIN_AGE: Duration = Duration::from_hours(1);

impl Follower {
    /// Stores the compiled modules that the cache lacks, in the background: another replica has refused and removed a damaged one, or
    /// this replica has compiled modules before it led.
    pub(super) fn store_missing(&self) {
        if self.leadership.is_leader() {
            let preparer = Arc::clone(self.lifecycle.preparer());
            tokio::spawn(async move { preparer.modules.store_missing().await });
        }
    }

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
