//! The table of loaded policies: an immutable snapshot. Requests read it without a lock, and a reload replaces it as a whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_core::matching::Labels;
use proviso_core::request::{Criteria, Level};
use proviso_core::{Enforcement, Failure, Match, PolicyId};
use proviso_crds::{AdmissionCoverage, EnforcementPoint, PointMismatch, PreviewSettings, ServiceRequests};
use proviso_programs::Conditions;
use tokio::sync::watch;

use crate::budgets::Accounts;
use crate::configuration::Content;
use crate::lifecycle::prepare::PrepareError;
use crate::manifests::ExperimentId;
use crate::metrics::{ExperimentMetrics, PolicyMetrics};
use crate::preview::{DivergenceCounter, Observation, Versions};
use crate::program::RevisionProgram;
use crate::requests::ServedRequests;

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
    /// The request policies among them. The previews of a request keep them after the table is replaced.
    pub requests: Arc<ServedRequests>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    pub origin: Origin,
    /// The problems that concern no single policy, one line each.
    pub problems: Vec<String>,
    /// The experiments that preview nothing, with the reason.
    pub idle_experiments: Vec<(ExperimentId, IdleReason)>,
    /// The experiments whose previews stop by themselves soon, with the times.
    pub ending_experiments: BTreeMap<ExperimentId, Timestamp>,
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
    /// The candidate is loaded, and is not previewed, because it is disabled.
    Suspended,
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
    #[error("{0} has {MAX_EXPERIMENTS} older experiments already: delete one")]
    TooMany(PolicyId),
    #[error("spec.policyRef.name: there is no policy {0}")]
    PolicyNotFound(PolicyId),
    /// The experiment decides about other requests than the policy, such as requests to services.
    #[error("spec.policy: {0}")]
    OtherPoint(PointMismatch),
}

/// The loaded revisions of one policy.
#[derive(Debug, Default)]
pub struct Entry {
    /// The live generation; `None` if no generation has worked yet or, in a cluster, if no loaded generation is live.
    pub live: Option<Arc<Revision>>,
    /// True if a live generation is not loaded on this replica. In a cluster, another replica may serve it.
    pub has_unloaded_live: bool,
    /// The etag of the live generation that is not loaded on this replica; `None` if there is none, or if it cannot be read.
    pub unloaded_live_etag: Option<String>,
    /// The other generations that answer: older ones and, in a cluster, newer ones.
    pub others: Vec<Arc<Revision>>,
    pub experiments: Arc<[Arc<Experiment>]>,
    /// The reason why the newest version of the manifest does not serve; `None` if it serves.
    pub failure: Option<Failure>,
    /// The requests of a request policy that this server must refuse; `None` if its live generation is loaded, or if it has none.
    pub unserved_requests: Option<UnservedRequests>,
    /// True if the policy configures components, and decides about no requests.
    pub is_configuration: bool,
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
    pub program: RevisionProgram,
    pub point: Point,
    pub enabled: bool,
    /// The time limit of one evaluation.
    pub timeout: Duration,
    /// The accounts of the policy in the budgets of evaluations.
    pub accounts: Accounts,
    /// The metrics of the policy. The evaluations of an experiment are counted as previews instead.
    pub metrics: PolicyMetrics,
}

/// The enforcement point of a policy: the requests that it decides about, or the configuration of components.
#[derive(Debug)]
pub enum Point {
    Admission(AdmissionPoint),
    Request(RequestPoint),
    /// The policy configures components and decides about no requests. Its program has the content.
    Configuration,
}

/// The requests to the Kubernetes API that a policy decides about.
#[derive(Debug)]
pub struct AdmissionPoint {
    pub matching: Match,
    /// The rules and selectors as text, to compare them with those of another revision.
    pub coverage: AdmissionCoverage,
    /// The compiled `matchConditions` that this server can evaluate; `None` if there are none.
    pub conditions: Option<Conditions>,
    /// True if the API server denies a request when the evaluation of the `matchConditions` fails (`failurePolicy: Fail`). False if
    /// it skips the policy then. Without effect over a folder.
    pub fails_closed: bool,
    /// True if an API server decides which requests the policy covers, and sends only those: in a cluster. Over a folder, this
    /// server decides.
    pub is_matched_by_api_server: bool,
    pub enforcement: Enforcement,
}

/// The requests to services that a policy decides about.
#[derive(Debug)]
pub struct RequestPoint {
    pub level: Level,
    pub priority: u32,
    /// The criteria without the tenant, which depends on the Namespace of the policy.
    pub criteria: Criteria,
}

/// The requests of a request policy that must be refused: without an answer of the policy, they must not be allowed.
#[derive(Debug)]
pub struct UnservedRequests {
    /// The requests; `None` means all requests of the tenant of the policy, because the spec of the policy cannot be read.
    pub point: Option<RequestPoint>,
    /// The live generation, which is not loaded here; `None` if no generation of the policy has worked yet.
    pub live: Option<u64>,
    pub why: String,
}

/// An experiment with an active preview. A stopped experiment is not in the table. To stop a preview, call
/// [`DivergenceCounter::stop`] on its counter: the evaluations that have begun end, and no other one begins, also for requests that
/// have an older table. The counts are final when [`DivergenceCounter::is_drained`] is true.
#[derive(Debug)]
pub struct Experiment {
    pub id: ExperimentId,
    pub revision: Arc<Revision>,
    pub metrics: ExperimentMetrics,
    pub settings: PreviewSettings,
    /// The counts and samples for the status of the experiment; `None` if no status reports them. The publisher starts new counts
    /// when the live generation changes.
    pub counter: Option<Arc<DivergenceCounter>>,
    /// The reason why an older version than that of the manifest is previewed; `None` if the newest version is.
    pub failure: Option<Failure>,
}

impl RequestPoint {
    /// Returns the enforcement point of a request policy. `at` is the path of the section `request`, for errors.
    ///
    /// # Errors
    /// Returns an error if the level is not possible for the policy, or if the selector is not valid.
    pub fn new(at: &str, policy: &PolicyId, request: &ServiceRequests) -> Result<Self, PrepareError> {
        Ok(Self {
            level: request.level(at, policy.namespace()).map_err(PrepareError::Field)?,
            priority: request.priority,
            criteria: request.criteria(None).map_err(PrepareError::RequestSelector)?,
        })
    }
}

impl Revision {
    /// Returns the requests to the Kubernetes API that the policy decides about; `None` for another policy.
    #[must_use]
    pub fn admission(&self) -> Option<&AdmissionPoint> {
        match &self.point {
            Point::Admission(point) => Some(point),
            Point::Request(_) | Point::Configuration => None,
        }
    }

    /// Returns the requests to services that the policy decides about; `None` for another policy.
    #[must_use]
    pub fn request(&self) -> Option<&RequestPoint> {
        match &self.point {
            Point::Request(point) => Some(point),
            Point::Admission(_) | Point::Configuration => None,
        }
    }

    #[must_use]
    pub fn enforcement_point(&self) -> EnforcementPoint {
        match &self.point {
            Point::Admission(_) => EnforcementPoint::Admission,
            Point::Request(_) => EnforcementPoint::Request,
            Point::Configuration => EnforcementPoint::Configuration,
        }
    }

    /// Returns the content of a configuration policy; `None` for another policy.
    #[must_use]
    pub fn configuration(&self) -> Option<&Arc<Content>> {
        match &self.program {
            RevisionProgram::Configuration(content) => Some(content),
            RevisionProgram::Code(_) | RevisionProgram::Requests(_) => None,
        }
    }

    /// Returns the enforcement of the verdicts about reviews. The verdicts of a request policy have the default.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        self.admission().map(|admission| admission.enforcement.clone()).unwrap_or_default()
    }
}

impl Experiment {
    /// Returns true if the webhook of this revision of the policy receives every request that concerns the experiment. An
    /// experiment that disables the policy concerns only requests that the policy receives.
    #[must_use]
    pub fn shares_webhook_with<'a>(&'a self, live: &'a Revision) -> bool {
        let coverage = |revision: &'a Revision| revision.admission().map(|admission| &admission.coverage);
        !self.revision.enabled || coverage(&self.revision) == coverage(live)
    }

    /// Returns the versions of an evaluation of this experiment in comparison with this live generation.
    #[must_use]
    pub fn versions<'a>(&'a self, live_etag: Option<&'a str>) -> Versions<'a> {
        Versions { experiment: &self.revision.etag, live: live_etag }
    }

    /// Begins an evaluation. Returns false if the preview was stopped. Otherwise, [`Self::end`] must follow.
    #[must_use]
    pub fn begin(&self) -> bool {
        self.counter.as_ref().is_none_or(|counter| counter.begin())
    }

    /// Ends an evaluation.
    pub fn end(&self) {
        if let Some(counter) = &self.counter {
            counter.end();
        }
    }

    /// Counts the result of an evaluation.
    pub fn observe(&self, live_etag: Option<&str>, observation: &Observation<'_>) {
        self.metrics.observe(observation.divergence, observation.has_failed);
        if let Some(counter) = &self.counter {
            counter.observe(self.versions(live_etag), observation);
        }
    }

    /// Counts a request that was not previewed.
    pub fn count_dropped(&self, live_etag: Option<&str>) {
        self.metrics.dropped.inc();
        if let Some(counter) = &self.counter {
            counter.count_dropped(self.versions(live_etag));
        }
    }
}

impl Entry {
    /// Returns the etag of the live generation, loaded here or not; `None` if no generation is live, or if the live one is neither
    /// loaded nor readable.
    #[must_use]
    pub fn live_etag(&self) -> Option<&str> {
        self.live.as_ref().map(|live| live.etag.as_str()).or(self.unloaded_live_etag.as_deref())
    }

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
