//! Filters in the form of ONAP's Policy API (`getConfig`), and their conversion.

use std::collections::BTreeMap;

use proviso_core::configuration::{CompiledFilter, ConfigurationPolicy, Filter};
use serde_json::{Map, Value, json};

use crate::answer::{Refusal, Result};

/// The name of a criterion in the form of ONAP.
const POLICY_NAME: &str = "policyName";
const CONFIG_NAME: &str = "configName";
const ONAP_NAME: &str = "onapName";
const CONFIG_ATTRIBUTES: &str = "configAttributes";
const UNIQUE: &str = "unique";
/// The id of the request, which is no criterion.
const REQUEST_ID: &str = "requestID";

/// A filter of ONAP's form.
#[derive(Clone, Debug)]
pub(crate) struct OnapFilter {
    compiled: CompiledFilter,
    is_unique: bool,
    /// The version in a `policyName` that names one version of one policy; `None` means the newest version.
    version: Option<i64>,
}

impl OnapFilter {
    /// Reads a filter. An empty text, an empty object and null are no criterion, as in the blueprints of DCAE.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        let (filter, version) = convert(body)?;
        let compiled =
            CompiledFilter::new(&filter).map_err(|error| Refusal::invalid(POLICY_NAME, &error.to_string()))?;
        Ok(Self { compiled, is_unique: filter.unique, version })
    }

    pub(crate) fn is_unique(&self) -> bool {
        self.is_unique
    }

    pub(crate) fn selects(&self, policy: &ConfigurationPolicy) -> bool {
        self.compiled.selects(policy) && self.version.is_none_or(|version| version == policy.version.generation)
    }
}

/// Returns the filter of Proviso, and the version that its `policyName` names.
fn convert(body: &Value) -> Result<(Filter, Option<i64>)> {
    let Some(members) = body.as_object() else {
        return Err(Refusal::invalid("body", "is not an object: send the criteria of a policy filter"));
    };
    let known = [POLICY_NAME, CONFIG_NAME, ONAP_NAME, CONFIG_ATTRIBUTES, UNIQUE, REQUEST_ID];
    if let Some(unknown) = members.keys().find(|key| !known.contains(&key.as_str())) {
        let unknown: String = unknown.chars().take(100).collect();
        return Err(Refusal::invalid(
            &unknown,
            &format!("is no criterion: the criteria are {}", known[..5].join(", ")),
        ));
    }
    let name = text(members, POLICY_NAME)?;
    let version = name.as_deref().and_then(versioned);
    let filter = Filter {
        name_regex: match version {
            Some((id, _)) => Some(escape(id)),
            None => name.clone(),
        },
        config_name: text(members, CONFIG_NAME)?,
        owner: text(members, ONAP_NAME)?,
        attributes: attributes(members.get(CONFIG_ATTRIBUTES).unwrap_or(&Value::Null))?,
        unique: match members.get(UNIQUE) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(unique)) => *unique,
            Some(_) => return Err(Refusal::invalid(UNIQUE, "is not true or false")),
        },
    };
    let Filter { name_regex, config_name, owner, attributes, .. } = &filter;
    if name_regex.is_none() && config_name.is_none() && owner.is_none() && attributes.is_empty() {
        let message = "has no criterion: set policyName, for example to a regular expression of policy ids";
        return Err(Refusal::invalid("body", message));
    }
    Ok((filter, version.map(|(_, version)| version)))
}

/// Returns a filter in the form of ONAP.
pub(crate) fn to_onap(filter: &Filter) -> Value {
    let mut onap = json!({
        POLICY_NAME: filter.name_regex.as_deref().unwrap_or(".*"),
        CONFIG_ATTRIBUTES: filter.attributes,
        UNIQUE: filter.unique,
    });
    for (name, value) in [(CONFIG_NAME, &filter.config_name), (ONAP_NAME, &filter.owner)] {
        if let Some(value) = value {
            onap[name] = json!(value);
        }
    }
    onap
}

fn text(members: &Map<String, Value>, name: &str) -> Result<Option<String>> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(Refusal::invalid(name, "is not a string")),
    }
}

/// Reads the attributes: an object, or the JSON of an object in a string.
fn attributes(value: &Value) -> Result<BTreeMap<String, String>> {
    let parsed;
    let value = match value {
        Value::String(text) if text.is_empty() => &Value::Null,
        Value::String(text) => {
            parsed = serde_json::from_str(text)
                .map_err(|error| Refusal::invalid(CONFIG_ATTRIBUTES, &format!("is no object as JSON: {error}")))?;
            &parsed
        }
        value => value,
    };
    match value {
        Value::Null => Ok(BTreeMap::new()),
        Value::Object(attributes) => attributes
            .iter()
            .map(|(key, value)| {
                let text = match value {
                    Value::String(text) => text.clone(),
                    Value::Number(_) | Value::Bool(_) => value.to_string(),
                    _ => {
                        let key: String = key.chars().take(100).collect();
                        return Err(Refusal::invalid(&format!("{CONFIG_ATTRIBUTES}.{key}"), "is not a string"));
                    }
                };
                Ok((key.clone(), text))
            })
            .collect(),
        _ => Err(Refusal::invalid(CONFIG_ATTRIBUTES, "is not an object")),
    }
}

/// Splits the name of one version of a policy: `<policy id>.<version>.xml`.
pub(crate) fn versioned(name: &str) -> Option<(&str, i64)> {
    let (id, version) = name.strip_suffix(".xml")?.rsplit_once('.')?;
    let version = version.parse().ok().filter(|_| version.bytes().all(|digit| digit.is_ascii_digit()))?;
    id.parse::<proviso_core::PolicyId>().ok()?;
    Some((id, version))
}

/// Escapes a policy id, whose only special character is the dot.
fn escape(id: &str) -> String {
    id.replace('.', r"\.")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn converted(body: &Value) -> std::result::Result<Filter, String> {
        convert(body).map(|(filter, _)| filter).map_err(|refusal| refusal.message)
    }

    #[test]
    fn criteria_are_converted_and_empty_ones_left_out() {
        let expected = Filter { name_regex: Some("cluster\\..*".to_owned()), ..Filter::default() };
        let empty = json!({
            "policyName": "cluster\\..*", "configName": "", "onapName": null, "configAttributes": {}, "unique": false,
            "requestID": "a",
        });
        assert_eq!(converted(&empty), Ok(expected.clone()));
        let attributes = BTreeMap::from([("key1".to_owned(), "value1".to_owned())]);
        let expected = Filter {
            config_name: Some("memory".to_owned()),
            owner: Some("DCAE".to_owned()),
            attributes,
            unique: true,
            ..expected
        };
        for attributes in [json!({"key1": "value1"}), json!(r#"{"key1": "value1"}"#)] {
            let body = json!({
                "policyName": "cluster\\..*", "configName": "memory", "onapName": "DCAE", "configAttributes": attributes,
                "unique": true,
            });
            assert_eq!(converted(&body), Ok(expected.clone()));
        }
    }

    #[test]
    fn numbers_and_booleans_of_attributes_are_texts() {
        let filter = converted(&json!({"configAttributes": {"priority": 10, "is_on": true}})).unwrap();
        let expected = [("is_on", "true"), ("priority", "10")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(filter.attributes, expected.into());
    }

    #[test]
    fn the_name_of_one_version_selects_only_this_version() {
        let (filter, version) = convert(&json!({"policyName": "cluster.memory.5.xml"})).unwrap();
        assert_eq!((filter.name_regex.as_deref(), version), (Some(r"cluster\.memory"), Some(5)));
        for name in ["cluster.memory", "cluster.memory.5", "memory.5.xml", "cluster.memory.+5.xml", "cluster.*.xml"] {
            assert_eq!(convert(&json!({"policyName": name})).unwrap().1, None, "{name}");
        }
    }

    #[test]
    fn errors_name_the_member() {
        for (body, member) in [
            (json!([]), "body"),
            (json!({}), "body"),
            (json!({"requestID": "a", "policyName": ""}), "body"),
            (json!({"policyname": "a"}), "policyname"),
            (json!({"policyName": 1}), "policyName"),
            (json!({"configName": ["a"]}), "configName"),
            (json!({"unique": "true"}), "unique"),
            (json!({"configAttributes": "x"}), "configAttributes"),
            (json!({"configAttributes": "[]"}), "configAttributes"),
            (json!({"configAttributes": {"priority": [1]}}), "configAttributes.priority"),
        ] {
            let message = converted(&body).unwrap_err();
            assert!(message.starts_with(&format!("{member}: ")), "{body}: {message}");
        }
        let message = OnapFilter::parse(&json!({"policyName": "("})).unwrap_err().message;
        assert!(message.starts_with("policyName: "), "{message}");
    }

    proptest! {
        #[test]
        fn a_filter_round_trips_through_the_form_of_onap(
            name in "[a-z]{1,8}", config_name in prop::option::of(".{1,8}"), owner in prop::option::of(".{1,8}"),
            attributes in prop::collection::btree_map(".{0,4}", ".{0,4}", 0..4), unique: bool,
        ) {
            let filter = Filter { name_regex: Some(name), config_name, owner, attributes, unique };
            prop_assert_eq!(converted(&to_onap(&filter)), Ok(filter.clone()));
            let mut as_text = to_onap(&filter);
            as_text[CONFIG_ATTRIBUTES] = json!(as_text[CONFIG_ATTRIBUTES].to_string());
            prop_assert_eq!(converted(&as_text), Ok(filter));
        }
    }
}
