//! Counters, gauges and histograms for `/metrics`. Each loaded revision holds the handles of its series, so that no request looks
//! up a series.

mod places;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use proviso_core::{Divergence, PolicyId, configuration};
use proviso_http::Limits;
use proviso_http::metrics::LimitMetrics;

use crate::budgets::Budgets;
use crate::denial_log::{DenialLog, PolicyDenialLog};
use crate::manifests::ExperimentId;
use places::{PlaceGauges, PlaceLabels};

pub use places::{PlaceMetrics, RefusalReason};

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    evaluations: Family<EvaluationLabels, Counter>,
    duration: Family<PolicyLabels, Histogram, fn() -> Histogram>,
    previews: Family<PreviewLabels, Counter>,
    previews_failed: Family<ExperimentLabels, Counter>,
    previews_dropped: Family<ExperimentLabels, Counter>,
    live_generation: Family<PolicyLabels, Gauge>,
    rollouts: Family<RolloutLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    subscriptions: Family<SubscriptionLabels, Gauge>,
    deliveries: Family<DeliveryLabels, Counter>,
    /// The number of problems in the documents of the folder.
    pub manifest_problems: Gauge,
    /// The number of policies and experiments whose newest version does not work.
    pub failing: Gauge,
    /// 1 if the files of the certificate and the key contain a working pair that is valid now, otherwise 0.
    pub tls_pair_valid: Gauge,
    limits: LimitMetrics,
    denials: DenialLog,
    places: PlaceGauges,
    place_waits: Histogram,
    places_refused: Family<PlaceLabels, Counter>,
}

/// The outcome of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Allowed,
    Mutated,
    Denied,
    /// The program denied the request, and the mode of the policy allowed it.
    Monitored,
    /// The evaluation failed.
    Failed,
    /// The program was not evaluated: the policy is disabled or does not cover the request.
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
struct SubscriptionLabels {
    delivered: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// The metrics of one policy.
#[derive(Clone, Debug)]
pub struct PolicyMetrics {
    outcomes: [Counter; Outcome::ALL.len()],
    /// The waits for places, and the refusals.
    pub places: PlaceMetrics,
    duration: Histogram,
    pub denials: PolicyDenialLog,
}

/// The metrics of one experiment.
#[derive(Clone, Debug)]
pub struct ExperimentMetrics {
    divergences: [Counter; Divergence::ALL.len()],
    failed: Counter,
    pub dropped: Counter,
}

impl PolicyMetrics {
    /// Counts an evaluation. `duration` is `None` if the program was not evaluated.
    pub fn observe(&self, outcome: Outcome, duration: Option<std::time::Duration>) {
        self.outcomes[outcome as usize].inc();
        if let Some(duration) = duration {
            self.duration.observe(duration.as_secs_f64());
        }
    }
}

impl ExperimentMetrics {
    /// Counts an evaluation. `has_failed` is true if the evaluation failed, whatever the divergence is.
    pub fn observe(&self, divergence: Divergence, has_failed: bool) {
        self.divergences[divergence as usize].inc();
        if has_failed {
            self.failed.inc();
        }
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
                // From 10 µs, for a small wasm policy, to 30 s, the longest evaluation timeout.
                Histogram::new([
                    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 2.0, 10.0, 30.0,
                ])
            }),
            previews: Family::default(),
            previews_failed: Family::default(),
            previews_dropped: Family::default(),
            live_generation: Family::default(),
            rollouts: Family::default(),
            refused: Family::default(),
            subscriptions: Family::default(),
            deliveries: Family::default(),
            manifest_problems: Gauge::default(),
            failing: Gauge::default(),
            tls_pair_valid: Gauge::default(),
            limits: LimitMetrics::default(),
            denials: DenialLog::default(),
            places: PlaceGauges::default(),
            place_waits: Histogram::new([1e-3, 5e-3, 2.5e-2, 5e-2, 0.1, 0.15, 0.2, 0.25]),
            places_refused: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("build", "Version of this server", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("evaluations", "Requests by policy and outcome", self.evaluations.clone());
        registry.register("evaluation_duration_seconds", "Duration of evaluations", self.duration.clone());
        registry.register("preview_evaluations", "Previews by divergence", self.previews.clone());
        registry.register("preview_errors", "Previews whose evaluation failed", self.previews_failed.clone());
        let dropped = "Requests that were not previewed, for example because the queue was full";
        registry.register("preview_dropped", dropped, self.previews_dropped.clone());
        registry.register("policy_live_generation", "Live generation of a policy", self.live_generation.clone());
        registry.register("rollouts", "New versions of policies and experiments by result", self.rollouts.clone());
        registry.register("requests_refused", "Requests that reached no policy", self.refused.clone());
        registry.register("manifest_problems", "Problems in the folder's documents", self.manifest_problems.clone());
        let subscriptions = "Subscriptions of the folder, by whether their components have acknowledged every policy";
        registry.register("subscriptions", subscriptions, self.subscriptions.clone());
        registry.register("deliveries", "Updates of components by result", self.deliveries.clone());
        let failing = "Policies and experiments whose newest version does not work";
        registry.register("failing", failing, self.failing.clone());
        let valid = "1 if the files of the certificate and the key contain a pair that is valid now, otherwise 0";
        registry.register("tls_pair_valid", valid, self.tls_pair_valid.clone());
        self.limits.register(registry);
        self.places.register(registry);
        let waits = "Time that evaluations waited for a place; not of those that got one at once";
        registry.register("evaluation_wait_seconds", waits, self.place_waits.clone());
        let refused = "Evaluations that got no place or no memory, by the share that was in use";
        registry.register("evaluations_refused", refused, self.places_refused.clone());
    }

    /// Returns the metrics of a policy. The evaluations of an experiment are not counted here, but as previews.
    #[must_use]
    pub fn policy(&self, policy: &PolicyId, engine: &'static str) -> PolicyMetrics {
        let policy = policy.to_string();
        PolicyMetrics {
            outcomes: Outcome::ALL.map(|outcome| {
                let outcome = outcome.as_str();
                self.evaluations.get_or_create_owned(&EvaluationLabels { policy: policy.clone(), engine, outcome })
            }),
            places: PlaceMetrics {
                waits: self.place_waits.clone(),
                refused: RefusalReason::ALL.map(|reason| {
                    let labels = PlaceLabels { policy: policy.clone(), reason: reason.as_str() };
                    self.places_refused.get_or_create_owned(&labels)
                }),
            },
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
            failed: self.previews_failed.get_or_create_owned(&ExperimentLabels { experiment: experiment.clone() }),
            dropped: self.previews_dropped.get_or_create_owned(&ExperimentLabels { experiment }),
        }
    }

    /// Sets the live generation of a policy; `None` removes the series of the policy.
    pub fn set_live_generation(&self, policy: &PolicyId, generation: Option<u64>) {
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

    /// Counts a prepared version: `is_accepted` is true if it was loaded.
    pub fn count_rollout(&self, is_accepted: bool) {
        let result = if is_accepted { "accepted" } else { "rejected" };
        self.rollouts.get_or_create(&RolloutLabels { result }).inc();
    }

    /// Counts a request that reached no policy.
    pub fn count_refused(&self, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabels { reason }).inc();
    }

    /// Sets the numbers of subscriptions whose components have every policy, and of the others.
    pub fn set_subscriptions(&self, delivered: usize, others: usize) {
        for (label, count) in [("true", delivered), ("false", others)] {
            let gauge = self.subscriptions.get_or_create(&SubscriptionLabels { delivered: label });
            gauge.set(count.try_into().unwrap_or(i64::MAX));
        }
    }

    /// Counts an update of a component.
    pub fn count_delivery(&self, outcome: &configuration::Outcome) {
        let result = match outcome {
            configuration::Outcome::Acknowledged => "acknowledged",
            configuration::Outcome::Rejected { .. } => "rejected",
            configuration::Outcome::Failed { .. } => "failed",
        };
        self.deliveries.get_or_create(&DeliveryLabels { result }).inc();
    }

    /// Reads the usage of these budgets from now on.
    pub fn follow(&self, budgets: Budgets) {
        // There is one set of budgets in a process.
        let _ = self.places.budgets.set(budgets);
    }

    /// Returns all metrics in the OpenMetrics text format.
    #[must_use]
    pub fn to_text(&self, limits: &Limits) -> String {
        self.limits.observe(limits);
        self.places.read();
        proviso_http::metrics::to_text(&self.registry)
    }
}
