//! The response to `/metrics`.

use std::fmt::Write as _;

use prometheus_client::registry::Registry;

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
