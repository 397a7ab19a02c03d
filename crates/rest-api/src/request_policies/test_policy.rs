//! A stored policy for tests.

use std::collections::BTreeMap;

use proviso_core::PolicyId;
use serde_json::{Value, json};

use crate::store::{Meta, State, StoredPolicy};

/// Returns a stored policy with this spec.
pub(super) fn stored(id: &str, spec: &Value) -> StoredPolicy {
    let time = |text: &str| serde_json::from_value(json!(text)).unwrap();
    StoredPolicy {
        id: id.parse::<PolicyId>().unwrap(),
        meta: Meta {
            uid: "u".to_owned(),
            etag: "\"1\"".to_owned(),
            revision: "1".to_owned(),
            version: "1".to_owned(),
            annotations: BTreeMap::new(),
            create_time: Some(time("2026-11-20T09:14:07Z")),
            update_time: Some(time("2026-11-21T09:14:07Z")),
        },
        spec: serde_json::from_value(spec.clone()).unwrap(),
        state: State::Active,
        problem: None,
    }
}
