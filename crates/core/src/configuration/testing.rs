//! Policies and bodies for tests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Audience, ConfigurationPolicy, Item, Version};
use crate::policy_id::PolicyId;

/// Returns the policy id of a text.
pub(super) fn id(text: &str) -> PolicyId {
    text.parse().unwrap()
}

/// Returns a policy without an owner and attributes. Its `configName` is `memory`.
pub(super) fn policy(id: &str, generation: i64) -> ConfigurationPolicy {
    ConfigurationPolicy {
        id: self::id(id),
        version: Version::of(generation),
        config_name: "memory".to_owned(),
        owner: None,
        attributes: BTreeMap::new(),
        is_confidential: false,
        audience: Audience::All,
    }
}

/// Returns attributes.
pub(super) fn attributes<const N: usize>(attributes: [(&str, &str); N]) -> BTreeMap<String, String> {
    attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Returns the body of a policy with this content.
pub(super) fn item(id: &str, generation: i64, content: &Value) -> Item {
    Item::new(&policy(id, generation), content).unwrap()
}

/// Returns a policy body with a content of this number of bytes.
pub(super) fn sized_item(id: &str, size: usize) -> Item {
    item(id, 1, &json!("x".repeat(size - 2)))
}

/// Returns the JSON value of a text.
pub(super) fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}
