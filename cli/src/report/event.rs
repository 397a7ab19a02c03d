//! Events of a policy.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

/// An Event, and the last time that it happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventReport {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub type_: String,
    pub reason: String,
    pub message: String,
    pub count: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Time>,
    /// The resource version, which differs if the same Event happens again.
    #[serde(skip)]
    pub version: String,
}

impl EventReport {
    /// Returns the Events, oldest first.
    #[must_use]
    pub fn list(events: &[Event]) -> Vec<Self> {
        let mut events: Vec<_> = events.iter().map(Self::new).collect();
        events.sort_by_key(|event| event.last_seen.as_ref().map(|time| time.0));
        events
    }

    fn new(event: &Event) -> Self {
        let series = event.series.as_ref();
        Self {
            type_: event.type_.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            message: event.message.clone().unwrap_or_default(),
            count: series.and_then(|series| series.count).or(event.count).unwrap_or(1).max(1),
            last_seen: last_seen(event).map(Time),
            version: event.metadata.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// Returns the last time of an Event; `None` if it has no time. Events of the new API (`events.k8s.io`) lack the times of the
/// old API.
fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let once = event.event_time.as_ref();
    let old = event.last_timestamp.as_ref().or(event.metadata.creation_timestamp.as_ref());
    series.or(once).map(|time| time.0).or_else(|| old.map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_sorted_by_their_last_time() {
        let event = |reason: &str, times: serde_json::Value| -> Event {
            let mut event = json!({"metadata": {}, "involvedObject": {}, "reason": reason});
            event.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            serde_json::from_value(event).unwrap()
        };
        let series = json!({
            "eventTime": "2026-11-21T09:00:00.000000Z",
            "series": {"count": 3, "lastObservedTime": "2026-11-21T09:50:00.000000Z"},
        });
        let events = EventReport::list(&[
            event("Series", series),
            event("Once", json!({"eventTime": "2026-11-21T09:10:00.000000Z"})),
            event("Old", json!({"lastTimestamp": "2026-11-21T09:05:00Z", "count": 2})),
        ]);
        let seen: Vec<_> = events.iter().map(|event| (event.reason.as_str(), event.count)).collect();
        assert_eq!(seen, [("Old", 2), ("Once", 1), ("Series", 3)]);
    }
}
