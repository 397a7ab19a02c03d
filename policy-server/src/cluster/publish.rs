//! Publishes the revisions of the cluster.

use super::Follower;
use super::object::Object;
use super::pod::PodId;
use super::readiness::{LiveRevision, unserved};
use super::status::loaded_before;
use crate::lifecycle::{Publication, Slot};
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
            has_listed: self.has_listed && self.namespaces.is_some() && !self.awaits_schema(),
            unready_reason: self.unready_reason(),
            unserved_requests: self.unserved_requests(),
            ..Publication::default()
        };
        let mut listed = Vec::with_capacity(self.objects.len());
        for (name, object) in &self.objects {
            let slot = self.lifecycle.get(name);
            publication.revisions.extend(object.view(slot));
            if let Some(slot) = slot {
                publication.modules.extend(object.modules().chain(slot.modules()));
            }
            if let Some(error) = object.report_error() {
                publication.problems.push(format!("{name}: its status cannot be written: {error}"));
            }
            let state = slot.map_or(RolloutState::Disabled, Slot::state);
            let unreadable = object.unreadable().filter(|_| matches!(state, RolloutState::Loaded));
            if let Some(failure) = unreadable {
                publication.problems.push(format!("{name}: {}", loaded_before(failure)));
            }
            publication.failing += usize::from(unreadable.is_some() || matches!(state, RolloutState::Failed(_)));
            let is_suspended = !object.is_enabled() && matches!(state, RolloutState::Loaded);
            let state = if is_suspended { RolloutState::Suspended } else { state };
            listed.push(ListedRevision { name: name.clone(), state });
        }
        publication.origin = Origin::Cluster(listed);
        publication
    }

    /// Returns true if revisions may become readable by the first fetch of the schema. A starting replica becomes Ready only after
    /// that, because until then it would deny the requests of these revisions.
    fn awaits_schema(&self) -> bool {
        !self.schema.was_tried() && self.objects.values().any(Object::has_unexplained_fields)
    }

    /// Returns the reason why this replica is not ready: it lacks a live revision that another Ready pod serves. If no other pod
    /// serves the revision, this replica stays ready: then it denies the requests of that revision, and serves the others.
    fn unready_reason(&self) -> Option<String> {
        let this = PodId { name: self.replica.pod_name.clone(), uid: self.replica.pod_uid.clone() };
        let ready = self.pods.iter().filter(|(_, pod)| pod.is_ready);
        let ready: Vec<_> = ready.map(|(name, pod)| PodId { name: name.clone(), uid: pod.uid.clone() }).collect();
        let live = self.objects.iter().filter(|(_, object)| object.is_live());
        let live: Vec<_> = live
            .map(|(name, object)| LiveRevision {
                name,
                served_by: &object.observed.reported.served_by,
                is_loaded: self.lifecycle.is_loaded(name),
            })
            .collect();
        let unserved = unserved(&this, &ready, &live)?;
        let (revision, pod) = (unserved.revision, &unserved.pod.name);
        let failure = self.lifecycle.get(&revision.to_owned()).and_then(Slot::failure);
        let why = failure.map_or_else(|| "it is still being loaded".to_owned(), ToString::to_string);
        Some(format!("{revision} is live, and not served here: {why}; the pod {pod} serves it"))
    }
}
