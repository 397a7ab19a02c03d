//! Parts of statuses for tests, as they are on the wire: a test that names a type or a reason finds out when its constant changes.
//! They are there with the feature `fixtures`.

use serde_json::{Value, json};

/// The time of all fixtures.
pub const TIME: &str = "2026-11-21T09:20:00Z";

/// A condition of this generation.
#[must_use]
pub fn condition(type_: &str, status: &str, reason: &str, message: &str, generation: i64) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message, "observedGeneration": generation,
        "lastTransitionTime": TIME,
    })
}

/// The item of a replica in the status of a revision. `ready` says whether it serves the revision.
#[must_use]
pub fn replica(pod: &str, uid: &str, ready: &str, reason: &str) -> Value {
    json!({
        "name": pod, "podUID": uid, "serverVersion": "0.1.0", "ready": ready, "reason": reason, "lastTransitionTime": TIME,
    })
}
