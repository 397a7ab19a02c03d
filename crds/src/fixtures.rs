//! Parts of statuses for tests, in their wire format. Tests spell out types and reasons, so that a changed constant fails a
//! test. The feature `fixtures` enables this module.

use serde_json::{Value, json};

/// The timestamp in all fixtures.
pub const TIME: &str = "2026-11-21T09:20:00Z";

/// Returns a condition that observed `generation`.
#[must_use]
pub fn condition(type_: &str, status: &str, reason: &str, message: &str, generation: i64) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message, "observedGeneration": generation,
        "lastTransitionTime": TIME,
    })
}

/// Returns the entry of a replica in the status of a revision. `ready` is `True`, `False` or `Unknown`: whether the replica
/// serves the revision.
#[must_use]
pub fn replica(pod: &str, uid: &str, ready: &str, reason: &str) -> Value {
    json!({
        "name": pod, "podUID": uid, "serverVersion": "0.1.0", "ready": ready, "reason": reason, "lastTransitionTime": TIME,
    })
}
