//! What no revision needs any more leaves the cache that the replicas share. The leader sees to it.

use std::collections::HashSet;
use std::time::Duration;

use proviso_artifacts::Digest;

use super::Follower;
use super::object::Object;

/// What was written later than that stays: a revision may be on its way that this replica has not seen.
const OLDER_THAN: Duration = Duration::from_hours(1);

impl Follower {
    /// Collects in the background. Disabled revisions count: they are what a rollback goes back to.
    pub(super) fn collect(&self) {
        let Some(cache) = self.lifecycle.preparer().cache.clone() else { return };
        if !self.has_listed || !self.leadership.is_leader() {
            return;
        }
        let pinned = self.objects.values().flat_map(Object::modules);
        let used: HashSet<Digest> = pinned.chain(self.lifecycle.slots().flat_map(|(_, slot)| slot.modules())).collect();
        tokio::spawn(async move {
            match cache.run(move |cache| cache.retain(&used, OLDER_THAN)).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "files that nobody needs removed from the cache"),
                Err(error) => tracing::warn!(reason = error.reason().as_str(), %error, "the cache cannot be cleaned"),
            }
        });
    }
}
