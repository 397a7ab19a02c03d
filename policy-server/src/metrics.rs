//! Counters and gauges for `/metrics`. Hot paths hold the handles of their own series, so that no request looks one up.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use proviso_core::{Divergence, PolicyId};

use crate::denial_log::{DenialLog, PolicyDenialLog};
use crate::manifests::ExperimentId;

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    evaluations: Family<EvaluationLabels, Counter>,
    duration: Family<PolicyLabels, Histogram, fn() -> Histogram>,
    previews: Family<PreviewLabels, Counter>,
    previews_dropped: Family<ExperimentLabels, Counter>,
    live_generation: Family<PolicyLabels, Gauge>,
    rollouts: Family<RolloutLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    /// Documents of the folder that cannot be used, at the last reading.
    pub manifest_problems: Gauge,
    /// Policies and experiments whose newest version does not work.
    pub failing: Gauge,
    /// Whether the certificate files hold a pair that works: 1 or 0.
    pub tls_pair_valid: Gauge,
    denials: DenialLog,
}

/// How an evaluation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Allowed,
    Mutated,
    Denied,
    /// The program denied, the policy's mode let it pass.
    Monitored,
    /// The program came to no decision.
    Failed,
    /// The policy was not asked: it is disabled or does not cover the request.
    Skipped,
}

impl Outcome {
    const ALL: [Self; 6] = [Self::Allowed, Self::Mutated, Self::Denied, Self::Monitored, Self::Failed, Self::Skipped];

    fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Mutated => "mutated",
            Self::Denied => "denied",
            Self::Monitored => "monitored",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvaluationLabels {
    policy: String,
    engine: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExperimentLabels {
    experiment: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PreviewLabels {
    experiment: String,
    divergence: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RolloutLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// The series of one policy.
#[derive(Clone, Debug)]
pub struct PolicyMetrics {
    outcomes: [Counter; Outcome::ALL.len()],
    duration: Histogram,
    pub denials: PolicyDenialLog,
}

/// The series of one experiment.
#[derive(Clone, Debug)]
pub struct ExperimentMetrics {
    divergences: [Counter; Divergence::ALL.len()],
    pub dropped: Counter,
}

impl PolicyMetrics {
    /// Counts an evaluation. `duration` is none where the program was not asked.
    pub fn observe(&self, outcome: Outcome, duration: Option<std::time::Duration>) {
        self.outcomes[outcome as usize].inc();
        if let Some(duration) = duration {
            self.duration.observe(duration.as_secs_f64());
        }
    }
}

impl ExperimentMetrics {
    pub fn observe(&self, divergence: Divergence) {
        self.divergences[divergence as usize].inc();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("proviso"),
            evaluations: Family::default(),
            duration: Family::new_with_constructor(|| {
                // From 10 µs, a small wasm policy, to the longest budget of 30 s.
                Histogram::new([
                    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 2.0, 10.0, 30.0,
                ])
            }),
            previews: Family::default(),
            previews_dropped: Family::default(),
            live_generation: Family::default(),
            rollouts: Family::default(),
            refused: Family::default(),
            manifest_problems: Gauge::default(),
            failing: Gauge::default(),
            tls_pair_valid: Gauge::default(),
            denials: DenialLog::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("build", "Version of this server", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("evaluations", "Requests by policy and how they ended", self.evaluations.clone());
        registry.register("evaluation_duration_seconds", "Time that programs took", self.duration.clone());
        registry.register("preview_evaluations", "Previews by how the experiment differed", self.previews.clone());
        registry.register("preview_dropped", "Previews left out: the queue was full", self.previews_dropped.clone());
        registry.register("policy_live_generation", "Generation that answers", self.live_generation.clone());
        registry.register("rollouts", "New versions of policies and experiments by result", self.rollouts.clone());
        registry.register("requests_refused", "Requests that reached no policy", self.refused.clone());
        registry.register("manifest_problems", "Faults in the folder's documents", self.manifest_problems.clone());
        let failing = "Policies and experiments whose newest version does not work";
        registry.register("failing", failing, self.failing.clone());
        let valid = "Whether the certificate files hold a pair that works";
        registry.register("tls_pair_valid", valid, self.tls_pair_valid.clone());
    }

    /// The series of a policy. An experiment counts its evaluations as a preview, not here.
    #[must_use]
    pub fn policy(&self, policy: &PolicyId, engine: &'static str) -> PolicyMetrics {
        let policy = policy.to_string();
        PolicyMetrics {
            outcomes: Outcome::ALL.map(|outcome| {
                let outcome = outcome.as_str();
                self.evaluations.get_or_create_owned(&EvaluationLabels { policy: policy.clone(), engine, outcome })
            }),
            duration: self.duration.get_or_create_owned(&PolicyLabels { policy }),
            denials: self.denials.policy(),
        }
    }

    #[must_use]
    pub fn experiment(&self, experiment: &ExperimentId) -> ExperimentMetrics {
        let experiment = experiment.to_string();
        ExperimentMetrics {
            divergences: Divergence::ALL.map(|divergence| {
                let labels = PreviewLabels { experiment: experiment.clone(), divergence: divergence.as_str() };
                self.previews.get_or_create_owned(&labels)
            }),
            dropped: self.previews_dropped.get_or_create_owned(&ExperimentLabels { experiment }),
        }
    }

    /// Which generation of the policy answers; none when it is gone.
    pub fn live(&self, policy: &PolicyId, generation: Option<u64>) {
        let labels = PolicyLabels { policy: policy.to_string() };
        match generation {
            Some(generation) => {
                self.live_generation.get_or_create(&labels).set(i64::try_from(generation).unwrap_or(i64::MAX));
            }
            None => {
                self.live_generation.remove(&labels);
            }
        }
    }

    /// Counts a new version that went live (`accepted`) or did not.
    pub fn rollout(&self, accepted: bool) {
        let result = if accepted { "accepted" } else { "rejected" };
        self.rollouts.get_or_create(&RolloutLabels { result }).inc();
    }

    /// Counts a request that reached no policy.
    pub fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabels { reason }).inc();
    }

    /// All metrics in the OpenMetrics text format.
    #[must_use]
    pub fn to_text(&self) -> String {
        proviso_http::metrics::to_text(&self.registry)
    }
}
