//! What is loaded: an immutable snapshot that requests read without a lock and a reload replaces as a whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_core::matching::Labels;
use proviso_core::{Divergence, Enforcement, Failure, Match, PolicyId, Review};
use proviso_crds::Reach;
use proviso_engines::Program;
use proviso_programs::Conditions;
use tokio::sync::watch;

use crate::manifests::ExperimentId;
use crate::metrics::{ExperimentMetrics, PolicyMetrics};
use crate::preview::Tally;

/// The table that requests read.
#[derive(Debug, Default)]
pub struct SharedTable {
    current: ArcSwap<Table>,
    changes: watch::Sender<()>,
}

impl SharedTable {
    #[must_use]
    pub fn load_full(&self) -> Arc<Table> {
        self.current.load_full()
    }

    pub fn store(&self, table: Table) {
        self.current.store(Arc::new(table));
        self.changes.send_replace(());
    }

    /// The table as soon as it is one that will do, and after this time in any case. One that will do at once is not
    /// waited for.
    pub async fn load_when(&self, will_do: impl Fn(&Table) -> bool, patience: Duration) -> Arc<Table> {
        let table = self.load_full();
        if will_do(&table) {
            return table;
        }
        let mut changes = self.changes.subscribe();
        let waiting = async {
            // The sender lives as long as this table.
            while !will_do(&self.load_full()) && changes.changed().await.is_ok() {}
        };
        // That it took too long is for the caller to see.
        let _ = tokio::time::timeout(patience, waiting).await;
        self.load_full()
    }
}

/// All policies, as they were at one moment.
#[derive(Debug, Default)]
pub struct Table {
    pub policies: HashMap<PolicyId, Entry>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    pub origin: Origin,
    /// What is wrong beside the policies themselves, a line each.
    pub problems: Vec<String>,
    /// Experiments that preview nothing, and why.
    pub idle_experiments: Vec<(ExperimentId, Idle)>,
    /// Whether everything that is to be served was tried at least once.
    pub is_complete: bool,
    /// Why requests had better go to other replicas.
    pub unready: Option<String>,
}

/// Where the policies come from.
#[derive(Debug, Default)]
pub enum Origin {
    /// A folder of manifests: of each policy one generation is live.
    #[default]
    Folder,
    /// The revisions of a cluster. Which one is live is for whoever calls to know: each answers at its own path only.
    Cluster(Vec<Listed>),
}

/// A revision of a cluster and where it stands.
#[derive(Debug)]
pub struct Listed {
    /// The name of its object: policy id and generation.
    pub name: String,
    pub standing: Standing,
}

#[derive(Debug)]
pub enum Standing {
    Loaded,
    Loading,
    /// The leader has not prepared it.
    Waiting,
    /// Not to be served.
    Disabled,
    /// Why it does not serve.
    Failed(Failure),
}

/// Why an experiment previews nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Idle {
    #[error("not started: spec.autoStart is false")]
    NotStarted,
    #[error("suspended")]
    Suspended,
    #[error("being prepared")]
    Preparing,
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("{0} has {MAX_EXPERIMENTS} active experiments already: remove one")]
    TooMany(PolicyId),
    #[error("spec.policyRef.name: there is no policy {0}")]
    PolicyNotFound(PolicyId),
}

/// One policy.
#[derive(Debug, Default)]
pub struct Entry {
    /// None while no generation ever worked; in a cluster, while the operator calls none live that is loaded here.
    pub live: Option<Arc<Revision>>,
    /// Whether a live generation is not loaded here. In a cluster another replica may serve it.
    pub lacks_live: bool,
    /// Other generations that answer: the older ones; in a cluster, also newer ones.
    pub others: Vec<Arc<Revision>>,
    pub experiments: Arc<[Arc<Experiment>]>,
    /// Why the newest version of the manifest does not serve.
    pub failure: Option<Failure>,
    /// Generations that are being prepared.
    pub expected: Vec<u64>,
    /// Generations that do not work, and why.
    pub failed: Vec<(u64, Failure)>,
}

/// A generation of a policy or an experiment, ready to decide.
#[derive(Debug)]
pub struct Revision {
    /// The policy; that of an experiment is the one it wants to replace.
    pub policy: PolicyId,
    pub generation: u64,
    /// Strong, with its quotes (AIP-154): a hash of uid and generation.
    pub etag: String,
    pub program: Program,
    pub matching: Match,
    /// As text, to be compared with another's.
    pub reach: Reach,
    /// Its `matchConditions`, for requests that the API server has not asked it about; none if there are none, or if they
    /// are about what only the API server knows.
    pub conditions: Option<Conditions>,
    /// Whether nobody has looked at them when it is asked: over a folder.
    pub asks_conditions: bool,
    pub enforcement: Enforcement,
    pub enabled: bool,
    /// How long one evaluation may take.
    pub timeout: Duration,
    /// The policy's series. An experiment's evaluations are counted as previews instead.
    pub metrics: PolicyMetrics,
}

/// An ACTIVE experiment.
#[derive(Debug)]
pub struct Experiment {
    pub id: ExperimentId,
    pub revision: Arc<Revision>,
    pub metrics: ExperimentMetrics,
    /// What is reported in its status, where somebody reports it.
    pub tally: Option<Arc<Tally>>,
    /// Why the newest version of the manifest is not the one that is previewed.
    pub failure: Option<Failure>,
}

impl Experiment {
    /// Whether every request about which it says anything comes with a call of this revision of its policy. One that takes
    /// the policy out of every path says nothing about others.
    #[must_use]
    pub fn rides_with(&self, live: &Revision) -> bool {
        !self.revision.enabled || self.revision.reach == live.reach
    }

    /// Counts an evaluation about a request that came at `seen`. `message` is what the one of the two that denies says.
    pub fn observe(&self, divergence: Divergence, review: &Review, seen: Timestamp, message: Option<&str>) {
        self.metrics.observe(divergence);
        if let Some(tally) = &self.tally {
            tally.observe(divergence, review, seen, message);
        }
    }

    /// Counts a request that it was not asked about.
    pub fn drop_one(&self) {
        self.metrics.dropped.inc();
        if let Some(tally) = &self.tally {
            tally.drop_one();
        }
    }
}

impl Entry {
    /// The revision that answers for this generation; the live one where none is named.
    #[must_use]
    pub fn revision(&self, generation: Option<u64>) -> Option<&Arc<Revision>> {
        let mut loaded = self.live.iter().chain(&self.others);
        match generation {
            None => self.live.as_ref(),
            Some(generation) => loaded.find(|revision| revision.generation == generation),
        }
    }
}
