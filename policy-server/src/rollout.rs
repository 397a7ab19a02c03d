//! The lifecycle of policies and experiments without a cluster: what the folder wants is prepared beside what
//! serves, goes live as a new generation when it works, and is reported when it does not.

mod slot;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_artifacts::Digest;
use proviso_core::PolicyId;
use proviso_core::matching::Labels;
use proviso_engines::Program;
use tokio::sync::{Semaphore, mpsc};

use crate::folder::{Folder, Scan, Wanted};
use crate::manifests::{ExperimentId, ObjectId, Problem};
use crate::metrics::Metrics;
use crate::prepare::{ModuleSource, PrepareError, Preparer};
use crate::state::{Record, Records, StateError, StateFile};
use crate::table::{Entry, Experiment, SharedTable, Table};
use slot::Slot;

/// How often the folder is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the generation before the live one still answers: API servers learn of a switch at different times.
const RETIRE_AFTER: Duration = Duration::from_mins(5);
/// The most ACTIVE experiments of one policy.
pub const MAX_EXPERIMENTS: usize = 10;

/// Makes the table follow the folder.
#[derive(Debug)]
pub struct Rollout {
    preparer: Arc<Preparer>,
    table: SharedTable,
    metrics: Arc<Metrics>,
    state: Option<StateFile>,
    slots: BTreeMap<ObjectId, Slot>,
    namespaces: Arc<BTreeMap<String, Labels>>,
    problems: Vec<Problem>,
    /// Preparations at the same time.
    places: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Prepared>,
    receiver: mpsc::UnboundedReceiver<Prepared>,
    is_complete: bool,
}

/// A preparation that ended.
#[derive(Debug)]
struct Prepared {
    id: ObjectId,
    fingerprint: Digest,
    result: Result<Program, PrepareError>,
}

impl Rollout {
    /// # Errors
    /// When the state file cannot be read: to start without it would be to forget generations silently.
    pub fn new(
        preparer: Arc<Preparer>,
        table: SharedTable,
        metrics: Arc<Metrics>,
        state: Option<StateFile>,
    ) -> Result<Self, StateError> {
        let records = state.as_ref().map(StateFile::read).transpose()?.unwrap_or_default();
        let (sender, receiver) = mpsc::unbounded_channel();
        let places = std::thread::available_parallelism().map_or(2, usize::from);
        Ok(Self {
            slots: records
                .into_iter()
                .filter_map(|(key, record)| Some((object_id(&key, &record)?, Slot::from(record))))
                .collect(),
            preparer,
            table,
            metrics,
            state,
            namespaces: Arc::default(),
            problems: Vec::new(),
            places: Arc::new(Semaphore::new(places)),
            sender,
            receiver,
            is_complete: false,
        })
    }

    /// Follows the folder until the task is dropped.
    pub async fn run(mut self, folder: Folder) {
        let mut folder = folder;
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = look.tick() => {
                    let looked = tokio::task::spawn_blocking(move || {
                        let scan = folder.changed();
                        (folder, scan)
                    });
                    let Ok((returned, scan)) = looked.await else {
                        tracing::error!("reading the folder of manifests panicked: it is not followed any more");
                        return;
                    };
                    folder = returned;
                    if let Some(scan) = scan {
                        self.take_scan(scan);
                    }
                    self.retire();
                }
                Some(prepared) = self.receiver.recv() => {
                    self.take_prepared(prepared);
                    // Writing the state and the table once for many is what makes a restart fast.
                    while let Ok(prepared) = self.receiver.try_recv() {
                        self.take_prepared(prepared);
                    }
                    self.publish().await;
                }
            }
        }
    }

    fn take_scan(&mut self, scan: Scan) {
        self.report(&scan.problems);
        let is_changed = *self.namespaces != scan.namespaces || self.problems != scan.problems;
        let gone: Vec<ObjectId> = self
            .slots
            .iter()
            .filter(|(id, slot)| {
                !scan.wanted.contains_key(id)
                    && !slot.record.as_ref().is_some_and(|record| scan.may_still_hold(id, &record.file))
            })
            .map(|(id, _)| id.clone())
            .collect();
        let mut publish = is_changed || !gone.is_empty() || !self.is_complete;
        for id in gone {
            tracing::info!(object = %id, "removed");
            self.slots.remove(&id);
            if let ObjectId::Policy(policy) = &id {
                self.metrics.live(policy, None);
            }
        }
        for (id, wanted) in &scan.wanted {
            publish |= self.want(id, wanted);
        }
        // Objects whose manifests are broken since before this start serve what was accepted last.
        let unserved: Vec<ObjectId> = self
            .slots
            .iter()
            .filter(|(id, slot)| !scan.wanted.contains_key(id) && slot.is_idle() && slot.live.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in unserved {
            self.restore(&id);
        }
        self.namespaces = Arc::new(scan.namespaces);
        self.problems = scan.problems;
        if publish {
            self.publish_table();
        }
    }

    /// Starts preparing what the manifest has now, if that is new.
    fn want(&mut self, id: &ObjectId, wanted: &Wanted) -> bool {
        let slot = self.slots.entry(id.clone()).or_default();
        if !slot.wants(wanted.fingerprint) {
            return slot.settle(wanted.fingerprint);
        }
        let immutable = slot.record.as_ref().and_then(|record| record.experiment.as_ref()).and_then(|old| {
            let (from, to) = (old.policy.to_string(), wanted.policy.to_string());
            (from != to).then_some(PrepareError::Immutable { from, to })
        });
        slot.candidate = Some(wanted.clone());
        if let Some(error) = immutable {
            let _ = self.sender.send(Prepared { id: id.clone(), fingerprint: wanted.fingerprint, result: Err(error) });
        } else {
            let folder = wanted.place.file.parent().map(ToOwned::to_owned).unwrap_or_default();
            self.prepare(id.clone(), wanted.fingerprint, wanted.spec.clone(), ModuleSource::Manifest { folder });
        }
        false
    }

    /// Prepares the generation that was accepted last, from the modules that were kept with it.
    fn restore(&mut self, id: &ObjectId) {
        let Some(record) = self.slots.get(id).and_then(|slot| slot.record.clone()) else { return };
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.restoring = Some(record.fingerprint);
        let digests = record.modules.into_iter().map(|(reference, digest)| (reference, digest.0)).collect();
        self.prepare(id.clone(), record.fingerprint, record.spec, ModuleSource::Pinned(digests));
    }

    fn prepare(&self, id: ObjectId, fingerprint: Digest, spec: proviso_crds::PolicySpec, source: ModuleSource) {
        let (preparer, places, sender) = (Arc::clone(&self.preparer), Arc::clone(&self.places), self.sender.clone());
        tokio::spawn(async move {
            let Ok(_place) = places.acquire_owned().await else { return };
            let result = preparer.prepare(&spec, &source).await;
            // Nobody listens only when the server ends.
            let _ = sender.send(Prepared { id, fingerprint, result });
        });
    }

    fn take_prepared(&mut self, Prepared { id, fingerprint, result }: Prepared) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if slot.restoring.take_if(|restoring| *restoring == fingerprint).is_some() {
            let restored = result.and_then(|program| {
                slot.record
                    .as_ref()
                    .map(|record| self.preparer.revision(&id, record, program, &self.metrics))
                    .transpose()
            });
            match restored {
                Ok(Some(revision)) if slot.live.is_none() => {
                    tracing::warn!(object = %id, generation = revision.generation, "serving the last good generation");
                    slot.live = Some(Arc::new(revision));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(object = %id, reason = error.reason(), %error, "the last good generation cannot be restored");
                }
            }
            return;
        }
        // A newer version of the manifest was read meanwhile: this one does not count any more.
        let Some(wanted) = slot.candidate.take_if(|wanted| wanted.fingerprint == fingerprint) else { return };
        let record = slot.next_record(&wanted);
        let revision = result.and_then(|program| self.preparer.revision(&id, &record, program, &self.metrics));
        match revision {
            Ok(revision) => {
                tracing::info!(
                    object = %id, generation = revision.generation, engine = revision.program.engine(), "live"
                );
                slot.accept(record, Arc::new(revision), Instant::now());
                self.metrics.rollout(true);
            }
            Err(error) => {
                tracing::warn!(
                    object = %id, reason = error.reason(), place = %wanted.place, %error,
                    "new version does not work; the last good generation keeps serving"
                );
                slot.failed = Some((fingerprint, format!("{}: {error} ({})", error.reason(), wanted.place)));
                self.metrics.rollout(false);
                if slot.live.is_none() && slot.record.is_some() {
                    self.restore(&id);
                }
            }
        }
    }

    /// Forgets generations that answered long enough.
    fn retire(&mut self) {
        let now = Instant::now();
        let mut retired = false;
        for slot in self.slots.values_mut() {
            retired |= slot.retire(now, RETIRE_AFTER);
        }
        if retired {
            self.publish_table();
        }
    }

    /// Writes the state, then the table: what serves is never newer than what a restart would know.
    async fn publish(&mut self) {
        if let Some(state) = self.state.clone() {
            let records = self.records();
            let written = tokio::task::spawn_blocking(move || state.write(records)).await;
            if let Ok(Err(error)) = written {
                tracing::error!(%error, "generations would not survive a restart");
            }
        }
        self.publish_table();
    }

    fn records(&self) -> Records {
        self.slots.iter().filter_map(|(id, slot)| Some((id.to_string(), slot.record.clone()?))).collect()
    }

    fn publish_table(&mut self) {
        self.is_complete |= self.slots.values().all(Slot::is_idle);
        let table = self.to_table();
        self.metrics
            .failing
            .set(self.slots.values().filter(|slot| slot.failed.is_some()).count().try_into().unwrap_or(i64::MAX));
        for (policy, entry) in &table.policies {
            self.metrics.live(policy, entry.live.as_ref().map(|revision| revision.generation));
        }
        self.table.store(Arc::new(table));
        let used: HashSet<Digest> = self.slots.values().flat_map(Slot::modules).collect();
        if self.is_complete {
            self.preparer.modules.retain(&used);
        }
    }

    fn to_table(&self) -> Table {
        let mut policies: HashMap<PolicyId, Entry> = HashMap::new();
        let mut experiments: HashMap<PolicyId, Vec<Arc<Experiment>>> = HashMap::new();
        let mut idle_experiments = Vec::new();
        for (id, slot) in &self.slots {
            match id {
                ObjectId::Policy(policy) if !slot.is_new() => {
                    policies.insert(policy.clone(), slot.to_entry());
                }
                ObjectId::Experiment(experiment) => match self.activate(experiment, slot) {
                    Ok(active) => experiments.entry(active.revision.policy.clone()).or_default().push(active),
                    Err(why) => idle_experiments.push((experiment.clone(), why)),
                },
                _ => {}
            }
        }
        for (policy, mut active) in experiments {
            let (excess, why) = match policies.get_mut(&policy) {
                Some(entry) => {
                    let excess = active.split_off(active.len().min(MAX_EXPERIMENTS));
                    entry.experiments = active.into();
                    (excess, format!("{policy} has {MAX_EXPERIMENTS} active experiments already: remove one"))
                }
                None => (active, format!("spec.policyRef.name: there is no policy {policy}")),
            };
            idle_experiments.extend(excess.iter().map(|experiment| (experiment.id.clone(), why.clone())));
        }
        Table {
            policies,
            namespaces: Arc::clone(&self.namespaces),
            problems: self.problems.iter().map(ToString::to_string).collect(),
            idle_experiments,
            is_complete: self.is_complete,
        }
    }

    /// The experiment, if it is to be previewed; else why not.
    fn activate(&self, id: &ExperimentId, slot: &Slot) -> Result<Arc<Experiment>, String> {
        let Some(revision) = slot.live.clone() else {
            return Err(slot
                .failed
                .as_ref()
                .map_or_else(|| "being prepared".to_owned(), |(_, trouble)| trouble.clone()));
        };
        let experiment = slot.record.as_ref().and_then(|record| record.experiment.as_ref());
        if !experiment.is_some_and(|experiment| experiment.auto_start) {
            return Err("not started: spec.autoStart is false".to_owned());
        }
        Ok(Arc::new(Experiment { id: id.clone(), revision, metrics: self.metrics.experiment(id) }))
    }

    /// Logs the problems that were not there before.
    fn report(&self, problems: &[Problem]) {
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::warn!(
                place = %problem.place, field = problem.field, error = problem.message,
                "manifest refused; whatever it held before keeps serving"
            );
        }
        self.metrics.manifest_problems.set(problems.len().try_into().unwrap_or(i64::MAX));
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
