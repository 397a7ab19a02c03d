//! The metrics of the budgets of evaluations: their usage, the waits, and the refusals.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::budgets::Budgets;

/// The share that was in use when an evaluation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// The places of the policy.
    Policy,
    /// The places of the namespace of the policy.
    Namespace,
    /// All places.
    Total,
    /// The memory of the policy, of its namespace, or of all policies.
    Memory,
    /// The CPUs: an evaluation did not begin before its deadline.
    Cpu,
}

impl RefusalReason {
    pub(super) const ALL: [Self; 5] = [Self::Policy, Self::Namespace, Self::Total, Self::Memory, Self::Cpu];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Namespace => "namespace",
            Self::Total => "total",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PlaceLabels {
    pub policy: String,
    pub reason: &'static str,
}

/// The metrics of the places of one policy.
#[derive(Clone, Debug)]
pub struct PlaceMetrics {
    pub(super) waits: Histogram,
    pub(super) refused: [Counter; RefusalReason::ALL.len()],
}

impl PlaceMetrics {
    pub fn observe_wait(&self, wait: Duration) {
        self.waits.observe(wait.as_secs_f64());
    }

    pub fn count_refused(&self, reason: RefusalReason) {
        self.refused[reason as usize].inc();
    }
}

/// The gauges of the budgets.
#[derive(Debug, Default)]
pub(super) struct PlaceGauges {
    /// The budgets, which are made after the metrics.
    pub budgets: OnceLock<Budgets>,
    places: [Gauge; 3],
    memory: [Gauge; 2],
}

impl PlaceGauges {
    pub(super) fn register(&self, registry: &mut Registry) {
        let [in_use, total, waiting] = self.places.clone();
        let [memory, memory_total] = self.memory.clone();
        for (name, help, gauge) in [
            ("evaluation_places_in_use", "Places that evaluations hold", in_use),
            ("evaluation_places", "Number of places", total),
            ("evaluations_waiting", "Evaluations that wait for a place", waiting),
            ("evaluation_memory_in_use_bytes", "Memory of wasm instances", memory),
            ("evaluation_memory_bytes", "Memory limit of all wasm instances together", memory_total),
        ] {
            registry.register(name, help, gauge);
        }
    }

    /// Reads the usage of the budgets.
    pub(super) fn read(&self) {
        let Some(budgets) = self.budgets.get() else { return };
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (places, memory) = (budgets.places.usage(), budgets.memory.usage());
        let waiting = u64::try_from(places.waiting).unwrap_or(u64::MAX);
        for (to, value) in self.places.iter().zip([places.in_use, places.total, waiting]) {
            to.set(gauge(value));
        }
        for (to, value) in self.memory.iter().zip([memory.in_use, memory.total]) {
            to.set(gauge(value));
        }
    }
}
