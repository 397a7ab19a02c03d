//! The response to `/metrics`, and the metrics of the limits of a server.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::limits::Limits;

/// The content type of the OpenMetrics text format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns all metrics of `registry` in the OpenMetrics text format.
#[must_use]
pub fn to_text(registry: &Registry) -> String {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, registry).is_err() {
        // Writing to a String does not fail. The comment distinguishes a failed encoding from an empty registry.
        let _ = writeln!(text, "# the metrics could not be encoded");
    }
    text
}

/// The metrics of the limits of a server.
#[derive(Debug, Default)]
pub struct LimitMetrics {
    connections: Gauge,
    memory: Gauge,
    refused_connections: Counter,
    refused_requests: Counter,
}

impl LimitMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("http_connections", "Open connections", self.connections.clone());
        registry.register("http_request_memory_bytes", "Memory of the requests in flight", self.memory.clone());
        let refused = "Connections closed at once because their client had its share";
        registry.register("http_connections_refused", refused, self.refused_connections.clone());
        let refused = "Requests refused because there was no memory for them";
        registry.register("http_requests_refused", refused, self.refused_requests.clone());
    }

    /// Sets the metrics from the limits.
    pub fn observe(&self, limits: &Limits) {
        self.connections.set(i64::try_from(limits.connections()).unwrap_or(i64::MAX));
        self.memory.set(i64::try_from(limits.memory()).unwrap_or(i64::MAX));
        self.refused_connections.inner().store(limits.refused_connections(), Ordering::Relaxed);
        self.refused_requests.inner().store(limits.refused_requests(), Ordering::Relaxed);
    }
}
