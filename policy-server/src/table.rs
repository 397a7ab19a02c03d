//! The table of loaded policies: an immutable snapshot. Requests read it without a lock, and a reload replaces it as a whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_core::matching::Labels;
use proviso_core::{Divergence, Enforcement, Failure, Match, PolicyId, Review};
use proviso_crds::AdmissionCoverage;
use proviso_engines::Program;
use proviso_programs::Conditions;
use tokio::sync::watch;

use crate::manifests::ExperimentId;
use crate::metrics::{ExperimentMetrics, PolicyMetrics};
use crate::preview::DivergenceCounter;

/// The current table, which requests read.
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

    /// Waits until the current table meets the condition, at most for `timeout`. Returns the current table in both cases.
    pub async fn load_when(&self, condition: impl Fn(&Table) -> bool, timeout: Duration) -> Arc<Table> {
        let table = self.load_full();
        if condition(&table) {
            return table;
        }
        let mut changes = self.changes.subscribe();
        let waiting = async {
            // The sender lives as long as this table.
            while !condition(&self.load_full()) && changes.changed().await.is_ok() {}
        };
        // The caller sees a timeout by the table, which does not meet the condition.
        let _ = tokio::time::timeout(timeout, waiting).await;
        self.load_full()
    }
}

/// A snapshot of all policies.
#[derive(Debug, Default)]
pub struct Table {
    pub policies: HashMap<PolicyId, Entry>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    pub origin: Origin,
    /// The problems that concern no single policy, one line each.
    pub problems: Vec<String>,
    /// The experiments that preview nothing, with the reason.
    pub idle_experiments: Vec<(ExperimentId, IdleReason)>,
    /// True if the server has tried to load every desired revision at least once.
    pub is_complete: bool,
    /// The reason why this replica is not ready although the table is complete; `None` if it is ready.
    pub unready_reason: Option<String>,
}

/// The source of the policies of a table.
#[derive(Debug, Default)]
pub enum Origin {
    /// A folder of manifests. One generation of each policy is live.
    #[default]
    Folder,
    /// The revisions of a cluster. The caller's path selects the generation: each revision answers at its own path only.
    Cluster(Vec<ListedRevision>),
}

/// A revision of a cluster and its state on this replica.
#[derive(Debug)]
pub struct ListedRevision {
    /// The name of the `PolicyRevision`: policy id and generation.
    pub name: String,
    pub state: RolloutState,
}

/// The state of a revision on this replica.
#[derive(Debug)]
pub enum RolloutState {
    Loaded,
    Loading,
    /// The leader has not prepared the revision yet.
    Waiting,
    /// The revision is disabled and is not loaded.
    Disabled,
    /// The revision cannot be loaded, for this reason.
    Failed(Failure),
}

/// The reason why an experiment previews nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum IdleReason {
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

/// The loaded revisions of one policy.
#[derive(Debug, Default)]
pub struct Entry {
    /// The live generation; `None` if no generation has worked yet or, in a cluster, if no loaded generation is live.
    pub live: Option<Arc<Revision>>,
    /// True if a live generation is not loaded on this replica. In a cluster, another replica may serve it.
    pub has_unloaded_live: bool,
    /// The other generations that answer: older ones and, in a cluster, newer ones.
    pub others: Vec<Arc<Revision>>,
    pub experiments: Arc<[Arc<Experiment>]>,
    /// The reason why the newest version of the manifest does not serve; `None` if it serves.
    pub failure: Option<Failure>,
    /// The generations that are being prepared.
    pub preparing: Vec<u64>,
    /// The generations that cannot be loaded, with the reason.
    pub failed: Vec<(u64, Failure)>,
}

/// A loaded generation of a policy or an experiment.
#[derive(Debug)]
pub struct Revision {
    /// The policy; for a candidate, the policy of its experiment.
    pub policy: PolicyId,
    pub generation: u64,
    /// The strong etag with its quotes (AIP-154): a hash of uid and generation.
    pub etag: String,
    pub program: Program,
    pub matching: Match,
    /// The rules and selectors as text, to compare them with those of another revision.
    pub coverage: AdmissionCoverage,
    /// The compiled `matchConditions`; `None` if the revision has none, or if only the API server can evaluate them.
    pub conditions: Option<Conditions>,
    /// True if an API server decides which requests the policy covers, and sends only those: in a cluster. Over a folder, this
    /// server decides.
    pub is_matched_by_api_server: bool,
    pub enforcement: Enforcement,
    pub enabled: bool,
    /// The time limit of one evaluation.
    pub timeout: Duration,
    /// The metrics of the policy. The evaluations of an experiment are counted as previews instead.
    pub metrics: PolicyMetrics,
}

/// An experiment with an active preview.
#[derive(Debug)]
pub struct Experiment {
    pub id: ExperimentId,
    pub revision: Arc<Revision>,
    pub metrics: ExperimentMetrics,
    /// The counts and samples for the status of the experiment; `None` if no status reports them.
    pub counter: Option<Arc<DivergenceCounter>>,
    /// The reason why an older version than that of the manifest is previewed; `None` if the newest version is.
    pub failure: Option<Failure>,
}

impl Experiment {
    /// Returns true if the webhook of this revision of the policy receives every request that concerns the experiment. An
    /// experiment that disables the policy concerns only requests that the policy receives.
    #[must_use]
    pub fn shares_webhook_with(&self, live: &Revision) -> bool {
        !self.revision.enabled || self.revision.coverage == live.coverage
    }

    /// Counts an evaluation of a request that arrived at `arrived_at`. `message` is the message of the denial, if one side
    /// denies.
    pub fn observe(&self, divergence: Divergence, review: &Review, arrived_at: Timestamp, message: Option<&str>) {
        self.metrics.observe(divergence);
        if let Some(counter) = &self.counter {
            counter.observe(divergence, review, arrived_at, message);
        }
    }

    /// Counts a request that was not previewed.
    pub fn count_dropped(&self) {
        self.metrics.dropped.inc();
        if let Some(counter) = &self.counter {
            counter.count_dropped();
        }
    }
}

impl Entry {
    /// Returns the loaded revision of this generation, or the live revision if `generation` is `None`.
    #[must_use]
    pub fn revision(&self, generation: Option<u64>) -> Option<&Arc<Revision>> {
        let mut loaded = self.live.iter().chain(&self.others);
        match generation {
            None => self.live.as_ref(),
            Some(generation) => loaded.find(|revision| revision.generation == generation),
        }
    }
}
