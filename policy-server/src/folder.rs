//! The folder of manifests as a source of revisions. Each version of a manifest is prepared while the live generation serves, and
//! becomes the next generation when it works. The state file keeps the generations across restarts.

mod commit;
mod configuration;
mod object;
mod operations;
mod preview;
mod progress;
mod publish;
mod request_policies;
mod scan;
mod store;
mod task;
mod uniqueness;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_capabilities::FolderObjects;
use proviso_core::matching::Labels;
use proviso_core::{Failure, PolicyId};
use serde_json::Value;
use tokio::sync::watch;

use crate::configuration::Snapshot;
use crate::lifecycle::prepare::Preparer;
use crate::lifecycle::{Lifecycle, Publisher, Slot};
use crate::manifests::{ExperimentId, ObjectId, Problem, Sourced, SubscriptionId, SubscriptionManifest};
use crate::metrics::Metrics;
use crate::state::{State, StateError, StateFile};
use crate::table::{Revision, SharedTable};
use object::{Object, RevisionKey};
use operations::Operations;
use scan::Scan;
use uniqueness::Conflicts;

pub use task::FolderStoreHandle;

/// The time for which a replaced generation still answers. Callers learn of the new generation at different times.
const RETIRE_AFTER: Duration = Duration::from_mins(5);
/// The delay before the next attempt to write the state file after a failure.
const SAVE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The source that follows a folder of manifests and updates the table.
#[derive(Debug)]
pub struct FolderSource {
    lifecycle: Lifecycle<RevisionKey>,
    publisher: Publisher,
    state: Option<StateFile>,
    objects: BTreeMap<ObjectId, Object>,
    operations: Operations,
    /// The policies that were removed since the start. Other policies that a component has may be in unreadable documents.
    removed: BTreeSet<PolicyId>,
    subscriptions: BTreeMap<SubscriptionId, Arc<Sourced<SubscriptionManifest>>>,
    /// The configuration policies and the subscriptions, for the deliveries.
    configuration: watch::Sender<Arc<Snapshot>>,
    namespaces: BTreeMap<String, Sourced<Labels>>,
    /// The objects that programs may read if their permissions allow it, with their files.
    context: Vec<Sourced<Value>>,
    /// The same objects, as programs read them.
    context_store: Arc<FolderObjects>,
    metrics: Arc<Metrics>,
    problems: Vec<Problem>,
    /// The names and priorities that request policies want and other policies have.
    conflicts: Conflicts,
    /// True if the folder was read at least once.
    has_listed: bool,
    /// True if the table must be published again.
    is_changed: bool,
    /// The earliest time to write the state file; `None` if the file is up to date.
    save_due: Option<Instant>,
    /// The error of the last attempt to write the state file; `None` if it was successful.
    save_error: Option<String>,
}

impl FolderSource {
    /// Restores the objects from the state file.
    ///
    /// # Errors
    /// Returns an error if the state file cannot be read: a start without its content would lose the generations.
    pub fn new(
        preparer: Arc<Preparer>,
        table: Arc<SharedTable>,
        metrics: Arc<Metrics>,
        state: Option<StateFile>,
        context_store: Arc<FolderObjects>,
    ) -> Result<Self, StateError> {
        let state_read = state.as_ref().map(StateFile::read).transpose()?;
        let State { records, new_objects, operations } = state_read.unwrap_or_default();
        let accepted = records.into_iter().filter_map(|(key, record)| {
            let id = object_id(&key)?;
            Some((id.clone(), Object::restore(id, record)))
        });
        let new = new_objects.into_iter().filter_map(|(key, new)| {
            let id = object_id(&key)?;
            Some((id.clone(), Object::restore_new(id, new)))
        });
        Ok(Self {
            objects: accepted.chain(new).collect(),
            operations: Operations::restore(operations),
            lifecycle: Lifecycle::new(preparer, Arc::clone(&metrics)),
            publisher: Publisher::new(table, Arc::clone(&metrics)),
            state,
            removed: BTreeSet::new(),
            subscriptions: BTreeMap::new(),
            configuration: watch::Sender::default(),
            namespaces: BTreeMap::new(),
            context: Vec::new(),
            context_store,
            metrics,
            problems: Vec::new(),
            conflicts: Conflicts::default(),
            has_listed: false,
            is_changed: false,
            save_due: None,
            save_error: None,
        })
    }

    fn take_scan(&mut self, mut scan: Scan) {
        self.report(&scan.problems);
        // The policies read these objects, so take them first.
        self.take_context(&mut scan);
        let is_gone = |(id, object): &(&ObjectId, &Object)| {
            !scan.desired.contains_key(id) && !object.file().is_some_and(|file| scan.may_still_hold(id, file))
        };
        let gone: Vec<ObjectId> = self.objects.iter().filter(is_gone).map(|(id, _)| id.clone()).collect();
        for id in gone {
            tracing::info!(object = %id, "removed");
            self.remove_object(&id);
        }
        for (id, version) in std::mem::take(&mut scan.desired) {
            let is_new = !self.objects.contains_key(&id);
            let object = self.objects.entry(id.clone()).or_insert_with(|| Object::new(id));
            if object.take(version) || is_new {
                self.save_due.get_or_insert_with(Instant::now);
            }
        }
        for (name, old) in std::mem::take(&mut self.namespaces) {
            if scan.may_still_hold(&ObjectId::Namespace(name.clone()), &old.place.file) {
                scan.namespaces.entry(name).or_insert(old);
            }
        }
        self.namespaces = std::mem::take(&mut scan.namespaces);
        let subscriptions = std::mem::take(&mut scan.subscriptions);
        self.take_subscriptions(subscriptions, &scan);
        self.problems = scan.problems;
        (self.has_listed, self.is_changed) = (true, true);
        // Before the versions are desired, so that a version in conflict is never prepared.
        self.arbitrate();
        let ids: Vec<ObjectId> = self.objects.keys().cloned().collect();
        for id in ids {
            self.desire(&id);
        }
    }

    /// Replaces the objects that programs may read. The objects of an unreadable document stay as they were.
    fn take_context(&mut self, scan: &mut Scan) {
        let is_unreadable = |object: &Sourced<Value>| {
            let mut whole = scan.problems.iter().filter(|problem| problem.object.is_none());
            whole.any(|problem| object.place.file.starts_with(&problem.place.file))
        };
        let id = |object: &Sourced<Value>| {
            let object = &object.spec;
            let metadata = &object["metadata"];
            [&object["apiVersion"], &object["kind"], &metadata["namespace"], &metadata["name"]].map(Value::to_string)
        };
        let mut objects = std::mem::take(&mut scan.objects);
        let known: BTreeSet<_> = objects.iter().map(id).collect();
        let kept = self.context.drain(..).filter(|old| is_unreadable(old) && !known.contains(&id(old)));
        objects.extend(kept);
        self.context_store.replace(objects.iter().map(|object| object.spec.clone()));
        self.context = objects;
    }

    fn remove_object(&mut self, id: &ObjectId) {
        if let ObjectId::Policy(policy) = id {
            self.removed.insert(policy.clone());
        }
        if let Some(mut object) = self.objects.remove(id) {
            object.preview.end(&Time(Timestamp::now()));
            for key in object.replace_desired(Vec::new()) {
                self.lifecycle.release(&key);
            }
        }
        self.save_due.get_or_insert_with(Instant::now);
    }

    /// Desires the revisions of an object that must be loaded now, and releases its other revisions.
    fn desire(&mut self, id: &ObjectId) {
        let Some(object) = self.objects.get_mut(id) else { return };
        let desired = object.desired(self.conflicts.refusal(id), |key| self.lifecycle.get(key));
        let keys = desired.iter().map(|(key, _)| key.clone()).collect();
        for (key, desired) in desired {
            self.is_changed |= self.lifecycle.desire(key, desired);
        }
        for key in object.replace_desired(keys) {
            self.is_changed |= self.lifecycle.release(&key);
        }
    }

    /// Handles a revision that was loaded or has failed. The newest version of an object goes live when it is loaded.
    fn take_settled(&mut self, key: &RevisionKey) {
        self.is_changed = true;
        let Some(object) = self.objects.get_mut(&key.object) else { return };
        let loaded = self.lifecycle.get(key).and_then(Slot::loaded).cloned();
        let accepted = object.accepted();
        if let Some(loaded) = loaded {
            let generation = key.generation;
            if object.newest().as_ref() == Some(key) {
                let was_live = accepted.is_some_and(|accepted| self.lifecycle.is_loaded(&accepted));
                object.accept(&loaded, was_live, Instant::now());
                self.save_due.get_or_insert_with(Instant::now);
                tracing::info!(object = %key.object, generation, "live");
            } else if accepted.as_ref() == Some(key) {
                tracing::warn!(object = %key.object, generation, "serving the last good generation");
            }
        }
        self.desire(&key.object);
        if !self.conflicts.is_empty() {
            // The accepted generation may have released the name or the priority of the generation before it.
            self.arbitrate();
        }
    }

    /// Releases the replaced generations that have answered for [`RETIRE_AFTER`].
    fn retire(&mut self) {
        let now = Instant::now();
        let retired = self.objects.iter_mut().filter_map(|(id, object)| object.retire(now, RETIRE_AFTER).then_some(id));
        let retired: Vec<ObjectId> = retired.cloned().collect();
        for id in retired {
            self.desire(&id);
        }
    }

    /// Logs the problems that are new.
    fn report(&self, problems: &[Problem]) {
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::warn!(
                place = %problem.place, field = problem.field, error = problem.message,
                "manifest refused; the last good versions of its objects keep serving"
            );
        }
    }

    /// Returns the revision of the object that serves: the last accepted generation, if it is loaded.
    fn live(&self, object: &Object) -> Option<&Arc<Revision>> {
        let accepted = self.lifecycle.get(&object.accepted()?)?;
        accepted.loaded().map(|loaded| &loaded.revision)
    }

    /// Returns the reason why the newest version of the object does not serve: the version does not work, or the last accepted
    /// generation cannot be loaded again. Returns `None` if the newest version serves or is still being prepared.
    fn failure(&self, object: &Object) -> Option<Failure> {
        let failure = |key: Option<RevisionKey>| self.lifecycle.get(&key?)?.failure().cloned();
        failure(object.newest()).or_else(|| {
            let Failure { reason, message } = failure(object.accepted())?;
            Some(Failure { reason, message: format!("the last good generation cannot be loaded again: {message}") })
        })
    }

    /// Returns the same reason, but only when no version of the object is being prepared.
    fn settled_failure(&self, object: &Object) -> Option<Failure> {
        self.failure(object).filter(|_| self.is_settled(object))
    }

    /// Returns true if every version of the object was tried once.
    fn is_tried(&self, object: &Object) -> bool {
        let mut keys = [object.newest(), object.accepted()].into_iter().flatten();
        keys.all(|key| self.lifecycle.get(&key).is_none_or(|slot| slot.loaded().is_some() || slot.failure().is_some()))
    }

    /// Returns true if no version of the object is being prepared.
    fn is_settled(&self, object: &Object) -> bool {
        let mut keys = [object.newest(), object.accepted()].into_iter().flatten();
        keys.all(|key| self.lifecycle.get(&key).is_none_or(Slot::is_settled))
    }
}

/// Returns the id of the object with this key in the state file; `None` if the key is damaged.
fn object_id(key: &str) -> Option<ObjectId> {
    let Some(experiment) = key.strip_prefix("experiment ") else {
        return key.parse().ok().map(ObjectId::Policy);
    };
    // The ids of experiments have the form of the ids of policies.
    let id: PolicyId = experiment.parse().ok()?;
    let namespace = id.namespace().map(ToOwned::to_owned);
    Some(ObjectId::Experiment(ExperimentId { namespace, name: id.name().to_owned() }))
}
