//! Publishes the revisions of a source: updates the table that requests read, and the gauges.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use proviso_artifacts::Digest;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_core::{Failure, PolicyId};

use super::Slot;
use crate::manifests::ExperimentId;
use crate::metrics::Metrics;
use crate::preview::{self, Versions};
use crate::requests::ServedRequests;
use crate::table::{Entry, Experiment, IdleReason, Origin, Revision, SharedTable, Table, UnservedRequests};

/// A revision as its source presents it.
#[derive(Debug)]
pub struct View<'a> {
    pub policy: &'a PolicyId,
    pub generation: u64,
    pub role: Role,
    /// The slot of the revision; `None` if the revision is disabled, so that the source does not desire it.
    pub slot: Option<&'a Slot>,
}

/// The role of a revision in the lifecycle of its policy.
#[derive(Debug)]
pub enum Role {
    /// The generation that decides about requests.
    Live,
    /// Another generation. It answers requests that name it, if it is loaded.
    Other,
    /// The revision of an experiment, with its preview; `None` if it previews nothing.
    Candidate(Option<Arc<Experiment>>),
}

/// The state that a source publishes.
#[derive(Debug, Default)]
pub struct Publication<'a> {
    pub revisions: Vec<View<'a>>,
    /// The policies whose newest version does not serve, with the reason.
    pub failures: Vec<(PolicyId, Failure)>,
    /// The requests of request policies that a replica in a cluster must refuse. Over a folder, they follow from `revisions`.
    pub unserved_requests: Vec<(PolicyId, UnservedRequests)>,
    /// The experiments that preview nothing, with the reason.
    pub idle_experiments: Vec<(ExperimentId, IdleReason)>,
    /// The experiments whose previews stop by themselves soon, with the times.
    pub ending_experiments: BTreeMap<ExperimentId, Timestamp>,
    pub namespaces: Arc<BTreeMap<String, proviso_core::matching::Labels>>,
    pub origin: Origin,
    /// The problems that concern no single policy, one line each.
    pub problems: Vec<String>,
    /// The number of policies and experiments (in a cluster, revisions) whose newest version does not work.
    pub failing: usize,
    /// True if the source knows all revisions that it desires.
    pub has_listed: bool,
    /// The reason why this replica is not ready although all revisions were tried; `None` if it is ready.
    pub unready_reason: Option<String>,
    /// The modules of the desired revisions, loaded or not.
    pub modules: HashSet<Digest>,
}

/// The table of a publication, and the values that are published with it.
#[derive(Debug)]
pub struct Snapshot {
    table: Table,
    failing: usize,
    modules: HashSet<Digest>,
}

impl Publication<'_> {
    #[must_use]
    pub fn into_snapshot(self) -> Snapshot {
        let is_complete = self.has_listed && self.revisions.iter().all(|view| view.slot.is_none_or(Slot::is_tried));
        let is_folder = matches!(self.origin, Origin::Folder);
        let mut policies: HashMap<PolicyId, Entry> = HashMap::new();
        let mut experiments: HashMap<PolicyId, Vec<Arc<Experiment>>> = HashMap::new();
        for view in self.revisions {
            match view.role {
                Role::Candidate(preview) => {
                    experiments.entry(view.policy.clone()).or_default().extend(preview);
                }
                Role::Live | Role::Other => {
                    let entry = policies.entry(view.policy.clone()).or_default();
                    entry.add(&view);
                    // The source of a cluster knows by the statuses of the revisions which requests are unserved.
                    if is_folder {
                        let unserved = view.slot.and_then(Slot::unserved_requests);
                        entry.unserved_requests = unserved.or(entry.unserved_requests.take());
                    }
                }
            }
        }
        for entry in policies.values_mut() {
            // The last generation that worked keeps answering.
            entry.unserved_requests.take_if(|_| entry.live.is_some());
        }
        for (policy, unserved) in self.unserved_requests {
            policies.entry(policy).or_default().unserved_requests = Some(unserved);
        }
        for (policy, failure) in self.failures {
            policies.entry(policy).or_default().failure = Some(failure);
        }
        let mut idle_experiments = self.idle_experiments;
        for (policy, mut previews) in experiments {
            if let Some(live) = policies.get(&policy).and_then(|entry| entry.live.as_ref()) {
                idle_experiments.extend(remove_mismatches(&mut previews, live));
            }
            let excess = previews.split_off(previews.len().min(MAX_EXPERIMENTS));
            let reason = IdleReason::TooMany(policy.clone());
            idle_experiments.extend(excess.iter().map(|experiment| (experiment.id.clone(), reason.clone())));
            policies.entry(policy).or_default().experiments = previews.into();
        }
        let table = Table {
            requests: Arc::new(ServedRequests::new(&policies, &self.namespaces)),
            policies,
            namespaces: self.namespaces,
            origin: self.origin,
            problems: self.problems,
            idle_experiments,
            ending_experiments: self.ending_experiments,
            is_complete,
            unready_reason: self.unready_reason,
        };
        Snapshot { table, failing: self.failing, modules: self.modules }
    }
}

/// Removes the experiments whose enforcement point is not that of the live revision. Returns them, with the reason.
fn remove_mismatches(previews: &mut Vec<Arc<Experiment>>, live: &Revision) -> Vec<(ExperimentId, IdleReason)> {
    let check = |experiment: &Experiment| {
        experiment.revision.enforcement_point().check_experiment_of(&live.policy, live.enforcement_point())
    };
    let mismatches = previews.iter().filter_map(|experiment| {
        let mismatch = check(experiment).err()?;
        Some((experiment.id.clone(), IdleReason::OtherPoint(mismatch)))
    });
    let mismatches = mismatches.collect();
    previews.retain(|experiment| check(experiment).is_ok());
    mismatches
}

/// The writer of the table and the gauges.
#[derive(Debug)]
pub struct Publisher {
    table: Arc<SharedTable>,
    metrics: Arc<Metrics>,
    /// True if every revision that may be live was tried at least once. It stays true from then on.
    is_complete: bool,
    /// The policies that have a gauge of their live generation.
    live: HashSet<PolicyId>,
}

impl Publisher {
    #[must_use]
    pub fn new(table: Arc<SharedTable>, metrics: Arc<Metrics>) -> Self {
        Self { table, metrics, is_complete: false, live: HashSet::new() }
    }

    /// Replaces the table. Returns the modules that must stay loaded; `None` if all modules must stay loaded.
    pub fn publish(&mut self, Snapshot { mut table, failing, modules }: Snapshot) -> Option<HashSet<Digest>> {
        self.is_complete |= table.is_complete;
        table.is_complete = self.is_complete;
        self.metrics.failing.set(failing.try_into().unwrap_or(i64::MAX));
        for entry in table.policies.values() {
            entry.start_counts();
        }
        self.table.store(table);
        // The gauge says what requests find in the table.
        let current = self.table.load_full();
        self.publish_live(&current.policies);
        // A starting server does not know all its revisions: it may have loaded a module for a revision that it does not know
        // yet.
        self.is_complete.then_some(modules)
    }

    fn publish_live(&mut self, policies: &HashMap<PolicyId, Entry>) {
        self.live.retain(|policy| {
            let is_live = policies.get(policy).is_some_and(|entry| entry.live.is_some());
            if !is_live {
                self.metrics.set_live_generation(policy, None);
            }
            is_live
        });
        for (policy, entry) in policies {
            if let Some(live) = &entry.live {
                self.metrics.set_live_generation(policy, Some(live.generation));
                self.live.insert(policy.clone());
            }
        }
    }
}

impl Entry {
    /// Starts new counts of the experiments if another generation is live than the one that they were compared with.
    fn start_counts(&self) {
        let live = self.live_etag();
        if live.is_none() && self.has_unloaded_live {
            // The live generation cannot be read. It may be the same as before.
            return;
        }
        let now = preview::now();
        for experiment in self.experiments.iter() {
            if let Some(counter) = &experiment.counter {
                counter.follow(Versions { experiment: &experiment.revision.etag, live }, &now);
            }
        }
    }

    fn add(&mut self, View { generation, role, slot, .. }: &View<'_>) {
        let is_live = matches!(role, Role::Live);
        let desired = slot.and_then(|slot| slot.desired.as_ref().ok());
        self.is_configuration |= desired.is_some_and(|desired| desired.spec.configuration.is_some());
        let loaded = slot.and_then(Slot::loaded);
        if is_live && loaded.is_none() {
            self.has_unloaded_live = true;
            self.unloaded_live_etag = slot.and_then(Slot::etag);
        }
        match (loaded, slot.and_then(Slot::failure), slot) {
            (Some(loaded), ..) if is_live => {
                // While the operator moves the webhook to the next generation, both generations may be marked live.
                let older = self.live.take_if(|live| live.generation < loaded.revision.generation);
                self.others.extend(older);
                match &self.live {
                    None => self.live = Some(Arc::clone(&loaded.revision)),
                    Some(_) => self.others.push(Arc::clone(&loaded.revision)),
                }
            }
            (Some(loaded), ..) => self.others.push(Arc::clone(&loaded.revision)),
            (None, Some(failure), _) => self.failed.push((*generation, failure.clone())),
            (None, None, Some(_)) => self.preparing.push(*generation),
            (None, None, None) => {}
        }
    }
}
