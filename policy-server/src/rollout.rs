//! The lifecycle of policies and experiments without a cluster: what the folder wants is prepared beside what
//! serves, goes live as a new generation when it works, and is reported when it does not.

mod commit;
mod desk;
mod publish;
mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_artifacts::Digest;
use proviso_core::matching::Labels;
use proviso_core::{Failure, PolicyId};
use proviso_engines::Program;
use proviso_host::FolderObjects;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::folder::{Folder, Scan, Wanted};
use crate::manifests::{ExperimentId, ObjectId, Problem, Sourced};
use crate::metrics::Metrics;
use crate::preparations::Preparations;
use crate::prepare::{self, ModuleSource, PrepareError, Preparer, RevisionOf, Scope};
use crate::state::{DigestText, Record, StateError, StateFile};
use crate::table::{Revision, SharedTable};
use desk::Order;
use slot::{Next, Slot};

pub use desk::Desk;

/// How often the folder is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the generation before the live one still answers: API servers learn of a switch at different times.
const RETIRE_AFTER: Duration = Duration::from_mins(5);
/// How long to wait before the state is written again when that failed.
const WRITE_AGAIN: Duration = Duration::from_secs(5);

/// Makes the table follow the folder.
#[derive(Debug)]
pub struct Rollout {
    preparations: Preparations,
    table: Arc<SharedTable>,
    metrics: Arc<Metrics>,
    state: Option<StateFile>,
    slots: BTreeMap<ObjectId, Slot>,
    namespaces: BTreeMap<String, Sourced<Labels>>,
    objects: Vec<Sourced<Value>>,
    /// What programs may read of them.
    readable: Arc<FolderObjects>,
    problems: Vec<Problem>,
    sender: mpsc::UnboundedSender<Prepared>,
    receiver: mpsc::UnboundedReceiver<Prepared>,
    /// Held so that the other end never closes.
    desk: Desk,
    orders: mpsc::Receiver<Order>,
    /// Whether everything in the folder was tried at least once.
    is_complete: bool,
    /// Whether the table is older than what stands here.
    is_changed: bool,
    /// Whether the state file is, and since when it may be written again.
    unsaved: Option<Instant>,
    /// Why the state cannot be written.
    state_trouble: Option<String>,
}

/// A preparation that ended.
#[derive(Debug)]
struct Prepared {
    id: ObjectId,
    fingerprint: Digest,
    /// Whether it is of the generation that was accepted last, to be loaded again.
    is_restored: bool,
    result: Result<prepare::Prepared, PrepareError>,
}

impl Rollout {
    /// # Errors
    /// When the state file cannot be read: to start without it would be to forget generations silently.
    pub fn new(
        preparer: Arc<Preparer>,
        table: Arc<SharedTable>,
        metrics: Arc<Metrics>,
        state: Option<StateFile>,
        readable: Arc<FolderObjects>,
    ) -> Result<Self, StateError> {
        let records = state.as_ref().map(StateFile::read).transpose()?.unwrap_or_default();
        let (sender, receiver) = mpsc::unbounded_channel();
        let (desk, orders) = Desk::new();
        Ok(Self {
            desk,
            orders,
            slots: records
                .into_iter()
                .filter_map(|(key, record)| Some((object_id(&key, &record)?, Slot::from(record))))
                .collect(),
            preparations: Preparations::new(preparer),
            table,
            metrics,
            state,
            namespaces: BTreeMap::new(),
            objects: Vec::new(),
            readable,
            problems: Vec::new(),
            sender,
            receiver,
            is_complete: false,
            is_changed: false,
            unsaved: None,
            state_trouble: None,
        })
    }

    /// Where the API asks for changes.
    #[must_use]
    pub fn desk(&self) -> Desk {
        self.desk.clone()
    }

    /// Follows the folder until the task is dropped.
    pub async fn run(mut self, path: PathBuf) {
        commit::recover(&path);
        let mut folder = Folder::new(path.clone());
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut answer = None;
            tokio::select! {
                _ = look.tick() => {
                    let looked = tokio::task::spawn_blocking(move || {
                        let scan = folder.changed();
                        (folder, scan)
                    });
                    let scan = match looked.await {
                        Ok((returned, scan)) => {
                            folder = returned;
                            scan
                        }
                        Err(error) => {
                            tracing::error!(%error, "reading the folder of manifests failed; trying again");
                            folder = Folder::new(path.clone());
                            None
                        }
                    };
                    if let Some(scan) = scan {
                        self.take_scan(scan);
                    }
                    self.retire();
                    self.retry();
                }
                Some(prepared) = self.receiver.recv() => {
                    self.take_prepared(prepared);
                    // Writing the state and the table once for many is what makes a restart fast.
                    while let Ok(prepared) = self.receiver.try_recv() {
                        self.take_prepared(prepared);
                    }
                }
                // One at a time, and never beside a look: a version that is compared is still there when it is swapped.
                Some(order) = self.orders.recv() => {
                    answer = Some(tokio::task::block_in_place(|| order(&mut self, &mut folder)));
                }
            }
            self.publish().await;
            if let Some(answer) = answer {
                answer();
            }
        }
    }

    fn take_scan(&mut self, mut scan: Scan) {
        self.report(&scan.problems);
        // Before the policies that read them.
        self.take_objects(&mut scan);
        let gone: Vec<ObjectId> = self
            .slots
            .iter()
            .filter(|(id, slot)| {
                !scan.wanted.contains_key(id) && !slot.file().is_some_and(|file| scan.may_still_hold(id, file))
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            tracing::info!(object = %id, "removed");
            self.slots.remove(&id);
            if let ObjectId::Policy(policy) = &id {
                self.metrics.live(policy, None);
            }
            self.unsaved.get_or_insert_with(Instant::now);
        }
        // Objects whose manifests are broken since before this start serve what was accepted last.
        let unserved = |(id, slot): &(&ObjectId, &Slot)| {
            !scan.wanted.contains_key(id) && slot.is_idle() && slot.live.is_none() && slot.lost.is_none()
        };
        let unserved: Vec<ObjectId> = self.slots.iter().filter(unserved).map(|(id, _)| id.clone()).collect();
        for id in unserved {
            self.restore(&id);
        }
        for (id, wanted) in std::mem::take(&mut scan.wanted) {
            self.want(&id, wanted);
        }
        for (name, old) in std::mem::take(&mut self.namespaces) {
            if scan.may_still_hold(&ObjectId::Namespace(name.clone()), &old.place.file) {
                scan.namespaces.entry(name).or_insert(old);
            }
        }
        self.namespaces = scan.namespaces;
        self.problems = scan.problems;
        self.is_changed = true;
    }

    /// Lets programs read the objects of the folder. Those of a document that cannot be read now stay as they were.
    fn take_objects(&mut self, scan: &mut Scan) {
        let is_broken = |object: &Sourced<Value>| {
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
        let kept = self.objects.drain(..).filter(|old| is_broken(old) && !known.contains(&id(old)));
        objects.extend(kept);
        self.readable.replace(objects.iter().map(|object| object.spec.clone()));
        self.objects = objects;
    }

    /// Starts preparing what the manifest has now, if that is new.
    fn want(&mut self, id: &ObjectId, wanted: Wanted) {
        let slot = self.slots.entry(id.clone()).or_default();
        if slot.want(wanted.clone(), Instant::now()) == Next::Prepare {
            self.start(id.clone(), wanted);
        } else if slot.move_file() {
            self.unsaved.get_or_insert_with(Instant::now);
        }
    }

    fn start(&self, id: ObjectId, wanted: Wanted) {
        let record = self.slots.get(&id).and_then(|slot| slot.record.as_ref());
        let old = record.and_then(|record| record.experiment.as_ref());
        if let Some(old) = old.filter(|old| old.policy != wanted.policy) {
            let (from, to) = (old.policy.to_string(), wanted.policy.to_string());
            let result = Err(PrepareError::Immutable { from, to });
            // The receiver is a field beside the sender.
            let _ = self.sender.send(Prepared { id, fingerprint: wanted.fingerprint, is_restored: false, result });
            return;
        }
        let folder = wanted.place.file.parent().map(ToOwned::to_owned).unwrap_or_default();
        // What was accepted before has the modules that it had then, wherever their tags point now.
        let accepted = record.filter(|record| record.fingerprint == wanted.fingerprint);
        let mut digests = accepted.map(|record| record.modules.clone()).unwrap_or_default();
        digests.extend(wanted.modules);
        let source = ModuleSource::Manifest { folder, digests };
        self.prepare(id, wanted.policy, wanted.fingerprint, wanted.spec, source);
    }

    /// Prepares the generation that was accepted last, from the modules that were kept with it.
    fn restore(&mut self, id: &ObjectId) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Some(record) = slot.record.clone() else { return };
        let policy = match policy_of(id, &record) {
            Ok(policy) => policy.clone(),
            Err(error) => {
                slot.lost = Some(error.to_failure());
                return;
            }
        };
        slot.is_restoring = true;
        self.prepare(id.clone(), policy, record.fingerprint, record.spec, ModuleSource::Pinned(record.modules));
    }

    fn prepare(
        &self,
        id: ObjectId,
        policy: PolicyId,
        fingerprint: Digest,
        spec: proviso_crds::PolicySpec,
        source: ModuleSource,
    ) {
        let sender = self.sender.clone();
        let is_restored = matches!(source, ModuleSource::Pinned(_));
        // Whatever they name of a folder is there.
        let is_known = true;
        self.preparations.start(policy, spec, Scope::of(&id), source, is_known, move |result| {
            // Nobody listens only when the server ends.
            let _ = sender.send(Prepared { id, fingerprint, is_restored, result });
        });
    }

    fn take_prepared(&mut self, prepared: Prepared) {
        self.is_changed = true;
        if prepared.is_restored {
            self.take_restored(prepared);
        } else {
            self.take_candidate(prepared);
        }
    }

    fn take_restored(&mut self, Prepared { id, fingerprint, result, .. }: Prepared) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.is_restoring = false;
        // A newer version may have been accepted meanwhile.
        let Some(record) = slot.record.as_ref().filter(|record| record.fingerprint == fingerprint) else { return };
        if slot.live.is_some() {
            return;
        }
        let result =
            result.and_then(|prepared| revision(&self.preparations, &self.metrics, &id, record, prepared.program));
        match result {
            Ok(revision) => {
                tracing::warn!(object = %id, generation = revision.generation, "serving the last good generation");
                slot.live = Some(Arc::new(revision));
            }
            Err(error) => {
                let message = "the last good generation cannot be loaded again";
                tracing::error!(object = %id, reason = error.reason(), %error, message);
                slot.lost = Some(Failure::new(error.reason(), format!("{message}: {error}")));
            }
        }
    }

    fn take_candidate(&mut self, Prepared { id, fingerprint, result, .. }: Prepared) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        // A newer version of the manifest was read meanwhile: this one does not count any more.
        if slot.preparing.take_if(|preparing| *preparing == fingerprint).is_none() {
            return;
        }
        let Some(wanted) = &slot.wanted else { return };
        if matches!(result, Err(PrepareError::Changed(_))) {
            // The next look at the folder finds another version.
            return;
        }
        let mut record = slot.next_record(wanted);
        let result = result.and_then(|prepared| {
            record.modules = prepared.modules.into_iter().map(|(name, digest)| (name, DigestText(digest))).collect();
            revision(&self.preparations, &self.metrics, &id, &record, prepared.program)
        });
        match result {
            Ok(revision) => {
                let (generation, engine) = (revision.generation, revision.program.engine());
                tracing::info!(object = %id, generation, engine, "live");
                slot.accept(record, Arc::new(revision), Instant::now());
                self.metrics.rollout(true);
                self.unsaved.get_or_insert_with(Instant::now);
            }
            Err(error) => {
                tracing::warn!(
                    object = %id, reason = error.reason(), place = %wanted.place, %error,
                    "new version does not work; the last good generation keeps serving"
                );
                let failure = Failure::new(error.reason(), format!("{error} ({})", wanted.place));
                slot.fail(fingerprint, failure, error.is_passing(), Instant::now());
                self.metrics.rollout(false);
                if slot.live.is_none() && slot.lost.is_none() && !slot.is_restoring {
                    self.restore(&id);
                }
            }
        }
    }

    /// Forgets generations that answered long enough.
    fn retire(&mut self) {
        let now = Instant::now();
        for slot in self.slots.values_mut() {
            self.is_changed |= slot.retire(now, RETIRE_AFTER);
        }
    }

    /// Tries versions again that failed for a passing reason.
    fn retry(&mut self) {
        let now = Instant::now();
        let due = self.slots.iter().filter(|(_, slot)| slot.is_due(now));
        let due: Vec<_> = due.filter_map(|(id, slot)| Some((id.clone(), slot.wanted.clone()?))).collect();
        for (id, wanted) in due {
            self.want(&id, wanted);
        }
    }

    /// Logs the problems that were not there before.
    fn report(&self, problems: &[Problem]) {
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::warn!(
                place = %problem.place, field = problem.field, error = problem.message,
                "manifest refused; whatever it held before keeps serving"
            );
        }
    }
}

/// Puts the program of a record and the rest of it together.
fn revision(
    preparations: &Preparations,
    metrics: &Metrics,
    id: &ObjectId,
    record: &Record,
    program: Program,
) -> Result<Revision, PrepareError> {
    let policy = policy_of(id, record)?;
    let of = RevisionOf { policy, uid: &record.uid, generation: record.generation };
    preparations.preparer().revision(of, &record.spec, program, metrics)
}

/// The policy that a record is of, or an experiment of which it is of.
fn policy_of<'a>(id: &'a ObjectId, record: &'a Record) -> Result<&'a PolicyId, PrepareError> {
    match (id, &record.experiment) {
        (ObjectId::Policy(policy), _) => Ok(policy),
        (_, Some(experiment)) => Ok(&experiment.policy),
        _ => Err(PrepareError::Record(id.clone())),
    }
}

/// Which object a record is of.
fn object_id(key: &str, record: &Record) -> Option<ObjectId> {
    match &record.experiment {
        None => key.parse().ok().map(ObjectId::Policy),
        Some(experiment) => {
            let namespace = experiment.policy.namespace().map(ToOwned::to_owned);
            let id: PolicyId = key.strip_prefix("experiment ")?.parse().ok()?;
            Some(ObjectId::Experiment(ExperimentId { namespace, name: id.name().to_owned() }))
        }
    }
}
