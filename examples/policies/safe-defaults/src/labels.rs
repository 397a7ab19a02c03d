//! The labels that an object gets if it does not have them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Adds the missing labels. Returns true if the object changed.
pub fn fill_in(object: &mut Value, labels: &BTreeMap<String, String>) -> bool {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return false;
    };
    let present = metadata.get("labels").and_then(Value::as_object);
    let missing: Vec<_> = labels.iter().filter(|(key, _)| present.is_none_or(|it| !it.contains_key(*key))).collect();
    if missing.is_empty() {
        return false;
    }
    let mut all = present.cloned().unwrap_or_else(Map::new);
    all.extend(missing.into_iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))));
    metadata.insert("labels".to_owned(), Value::Object(all));
    true
}

/// Checks the setting `labels`: the API server would refuse every object with a malformed label.
pub fn check(labels: &BTreeMap<String, String>) -> Result<(), String> {
    labels.iter().try_for_each(|(key, value)| {
        let (prefix, name) = match key.split_once('/') {
            Some((prefix, name)) => (Some(prefix), name),
            None => (None, key.as_str()),
        };
        if !is_qualified(name) || prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
            return Err(format!("labels: {key:?} is no label key such as \"example.com/team\""));
        }
        if !value.is_empty() && !is_qualified(value) {
            return Err(format!(
                "labels: {key}: {value:?} is no label value (at most 63 letters, digits, '-', '_', '.')"
            ));
        }
        Ok(())
    })
}

fn is_qualified(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    name.len() <= 63
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
}

fn is_subdomain(prefix: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    prefix.len() <= 253
        && prefix
            .split('.')
            .all(|label| label.starts_with(edge) && label.ends_with(edge) && label.chars().all(|c| edge(c) || c == '-'))
}
