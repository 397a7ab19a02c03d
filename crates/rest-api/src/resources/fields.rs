//! The fields of the resources: those that requests may have, those that update masks may name, and those that lists can be
//! filtered by.

use crate::filter::{Field, Kind};
use crate::mask::Fields;

pub(super) const POLICY_FIELD_NAMES: &[&str] =
    &["name", "uid", "etag", "spec", "annotations", "createTime", "updateTime", "state", "stateReason", "stateMessage"];
pub(super) const EXPERIMENT_FIELD_NAMES: &[&str] = &[
    "name",
    "uid",
    "etag",
    "policy",
    "previewMetadata",
    "annotations",
    "autoStart",
    "sampleRate",
    "logging",
    "ttl",
    "divergence",
    "samples",
    "canaries",
    "createTime",
    "updateTime",
    "stateReason",
    "stateMessage",
];

pub(crate) const POLICY_FIELDS: Fields = Fields {
    spec: "spec",
    mutable: &["annotations"],
    output: &["name", "uid", "etag", "createTime", "updateTime", "state", "stateReason", "stateMessage"],
};
pub(crate) const EXPERIMENT_FIELDS: Fields = Fields {
    spec: "policy.spec",
    mutable: &["annotations", "autoStart", "sampleRate", "logging", "ttl"],
    output: &[
        "name",
        "uid",
        "etag",
        "previewMetadata",
        "divergence",
        "samples",
        "canaries",
        "createTime",
        "updateTime",
        "stateReason",
        "stateMessage",
        "policy.name",
        "policy.uid",
        "policy.etag",
        "policy.annotations",
        "policy.createTime",
        "policy.updateTime",
        "policy.state",
        "policy.stateReason",
        "policy.stateMessage",
    ],
};

const fn field(path: &'static str, kind: Kind) -> Field {
    Field { path, kind }
}

pub(crate) const POLICY_FILTERS: &[Field] = &[
    field("name", Kind::Text),
    field("uid", Kind::Text),
    field("etag", Kind::Text),
    field("annotations", Kind::Map),
    field("createTime", Kind::Time),
    field("updateTime", Kind::Time),
    field("state", Kind::Enum(&["PENDING", "UPDATING", "ACTIVE", "FAILED", "DISABLED"])),
];
pub(crate) const EXPERIMENT_FILTERS: &[Field] = &[
    field("name", Kind::Text),
    field("uid", Kind::Text),
    field("etag", Kind::Text),
    field("policy.name", Kind::Text),
    field("annotations", Kind::Map),
    field("autoStart", Kind::Flag),
    field("sampleRate", Kind::Number),
    field("logging", Kind::Enum(&["All", "Divergences"])),
    field("createTime", Kind::Time),
    field("updateTime", Kind::Time),
    field("previewMetadata.state", Kind::Enum(&["ACTIVE", "SUSPENDED"])),
    field("previewMetadata.logPrefix", Kind::Text),
    field("previewMetadata.startTime", Kind::Time),
    field("previewMetadata.stopTime", Kind::Time),
    field("previewMetadata.expireTime", Kind::Time),
    field("previewMetadata.stopCause.reason", Kind::Text),
    field("previewMetadata.stopCause.message", Kind::Text),
    field("previewMetadata.generation", Kind::Number),
];
pub(crate) const OPERATION_FILTERS: &[Field] = &[
    field("name", Kind::Text),
    field("done", Kind::Flag),
    field("metadata.target", Kind::Text),
    field("metadata.createTime", Kind::Time),
];

#[cfg(test)]
mod tests {
    use proviso_crds::{PreviewMetadata, StopCause};
    use serde_json::{Value, json};

    use super::*;
    use crate::filter::Filter;

    /// Returns the paths of the values in an object.
    fn paths(at: &str, value: &Value) -> Vec<String> {
        match value {
            Value::Object(fields) => {
                fields.iter().flat_map(|(key, value)| paths(&format!("{at}.{key}"), value)).collect()
            }
            _ => vec![at.to_owned()],
        }
    }

    #[test]
    fn every_field_of_the_preview_metadata_can_be_filtered_by_in_both_spellings() {
        let time = |text: &str| serde_json::from_value(json!(text)).unwrap();
        let started = PreviewMetadata::start(None, 2, time("2026-11-20T09:14:07Z"), std::time::Duration::from_mins(5));
        let cause = StopCause { reason: "Expired".to_owned(), message: "its ttl has passed".to_owned() };
        let preview = json!(started.stop(time("2026-11-20T09:19:07Z"), Some(cause)));
        let found = paths("previewMetadata", &preview);
        assert_eq!(found.len(), 8, "{found:?}");
        let resource = json!({"previewMetadata": preview});
        for path in found {
            assert!(EXPERIMENT_FILTERS.iter().any(|field| field.path == path), "{path}");
            let snake: String = path
                .chars()
                .map(|letter| if letter.is_uppercase() { format!("_{}", letter.to_lowercase()) } else { letter.into() })
                .collect();
            for path in [path, snake] {
                let filter = Filter::parse(&format!("{path}:*"), EXPERIMENT_FILTERS).unwrap().unwrap();
                assert!(filter.matches(&resource), "{path}");
            }
        }
    }
}
