//! `spec.configuration`: a part of the configuration of components, which PolicySubscriptions select. Source: the policies of ONAP DCAE
//! (`policy_body` of the policy flow, take 7.2).

use std::collections::BTreeMap;

use kube::KubeSchema;
use proviso_core::PolicyId;
use proviso_core::configuration::{Audience, ConfigurationPolicy, Version};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::policy::PolicySpec;
use crate::program::any_object;
use crate::subscription::attributes;
use crate::validation::FieldError;

/// The maximum length of `configName` and of `owner`, in characters.
pub const MAX_CONFIG_NAME: usize = 253;
/// The maximum number of `attributes`.
pub const MAX_ATTRIBUTES: usize = 64;
/// The maximum length of the value of an attribute, in characters.
pub const MAX_ATTRIBUTE: usize = 1024;
/// The maximum number of `namespaces`.
pub const MAX_NAMESPACES: usize = 100;
/// The maximum size of `schema`, in bytes of JSON.
pub const MAX_SCHEMA: usize = 64 * 1024;
/// The maximum size of a template, in bytes.
pub const MAX_TEMPLATE: usize = 64 * 1024;

/// A part of the configuration of components. PolicySubscriptions select it by its id, or by its name, its owner and its attributes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.content) != has(self.template)").message("needs exactly one of `content` and `template`")
)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// The name of the configuration (ONAP: `ConfigName`): 1 to 253 characters. Filters of PolicySubscriptions compare it.
    #[schemars(length(min = 1, max = 253))]
    pub config_name: String,
    /// The owner of the policy (ONAP: `ONAPName`): 1 to 253 characters. Default: no owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub owner: Option<String>,
    /// Further matching conditions of the policy: at most 64 attributes, with values of at most 1024 characters. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "attributes")]
    pub attributes: BTreeMap<String, String>,
    /// The content that every component gets, as the member `config` of the policy body. The body has at most 512 KiB as JSON, and the
    /// content is nested at most 64 levels deep. Exclusive with `template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub content: Option<Map<String, Value>>,
    /// A template that computes the content for each component. It reads `component` (`input.component` in Rego): `namespace`, `name`,
    /// `kind` and `labels` of the component. CEL reads the settings of the policy as `params`, and Rego as `input.parameters`. A component
    /// that does not run in Kubernetes has the labels of its PolicySubscription, and no `kind`. Exclusive with `content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
    /// A JSON Schema of the content (draft 2020-12, at most 64 KiB, without references to other documents). Content that does not match is
    /// not delivered. Default: any content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub schema: Option<Map<String, Value>>,
    /// True if the body is delivered in a Secret, and never in a notification. Default: false.
    #[serde(default)]
    pub confidential: bool,
    /// The namespaces whose PolicySubscriptions may select a ClusterPolicy: at most 100 names. A Policy is only for its own namespace.
    /// Required for a ClusterPolicy that is confidential. Default: all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub namespaces: Option<Vec<String>>,
}

/// A template that computes the content of a policy for one component: exactly one of `cel` and `rego`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.cel) != has(self.rego)").message("needs exactly one of `cel` and `rego`"))]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// A CEL expression that returns the content, which is a map: at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub cel: Option<String>,
    /// A Rego module whose rule `content` is the content, which is an object: at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub rego: Option<String>,
}

impl Configuration {
    /// Returns the namespaces whose subscriptions may select the policy.
    #[must_use]
    pub fn audience(&self) -> Audience {
        match &self.namespaces {
            None => Audience::All,
            Some(namespaces) => Audience::Only(namespaces.iter().cloned().collect()),
        }
    }

    /// Returns this version of the policy with the id `id` as the catalog has it, without its content.
    #[must_use]
    pub fn facts(&self, id: PolicyId, version: Version) -> ConfigurationPolicy {
        ConfigurationPolicy {
            id,
            version,
            config_name: self.config_name.clone(),
            owner: self.owner.clone(),
            attributes: self.attributes.clone(),
            is_confidential: self.confidential,
            audience: self.audience(),
        }
    }
}

/// Returns the errors of `configuration` in the spec of a policy, beyond those that a compiler finds. `at` is the path of the spec.
pub(crate) fn check(at: &str, spec: &PolicySpec) -> Vec<FieldError> {
    let Some(configuration) = &spec.configuration else { return Vec::new() };
    let mut errors = Vec::new();
    let mut add = |field: &str, message: String| errors.push(FieldError::new(format!("{at}.{field}"), message));
    if !spec.program.is_none() {
        add(
            "program",
            "is set together with `configuration`: compute the content by `configuration.template`".to_owned(),
        );
    }
    if !spec.context_aware_resources.is_empty() {
        add("contextAwareResources", "has no effect on a policy with `configuration`: remove it".to_owned());
    }
    if !spec.host_capabilities.is_empty() {
        add("hostCapabilities", "has no effect on a policy with `configuration`: remove it".to_owned());
    }
    let has_length = |text: &str, most: usize| (1..=most).contains(&text.chars().count());
    if !has_length(&configuration.config_name, MAX_CONFIG_NAME) {
        add("configuration.configName", format!("must have 1 to {MAX_CONFIG_NAME} characters"));
    }
    if configuration.owner.as_ref().is_some_and(|owner| !has_length(owner, MAX_CONFIG_NAME)) {
        add("configuration.owner", format!("must have 1 to {MAX_CONFIG_NAME} characters"));
    }
    if configuration.attributes.len() > MAX_ATTRIBUTES {
        let count = configuration.attributes.len();
        add("configuration.attributes", format!("has {count} items: at most {MAX_ATTRIBUTES} are allowed"));
    }
    if let Some((key, _)) = configuration.attributes.iter().find(|(_, value)| value.chars().count() > MAX_ATTRIBUTE) {
        add(&format!("configuration.attributes.{key}"), format!("must have at most {MAX_ATTRIBUTE} characters"));
    }
    match (&configuration.content, &configuration.template) {
        (Some(_), None) => {}
        (None, Some(Template { cel, rego })) => {
            if cel.is_some() == rego.is_some() {
                add("configuration.template", "needs exactly one of `cel` and `rego`".to_owned());
            }
            for (field, text) in [("cel", cel), ("rego", rego)] {
                if text.as_ref().is_some_and(|text| !(1..=MAX_TEMPLATE).contains(&text.len())) {
                    add(&format!("configuration.template.{field}"), format!("must have 1 to {MAX_TEMPLATE} bytes"));
                }
            }
        }
        _ => add("configuration", "needs exactly one of `content` and `template`".to_owned()),
    }
    if let Some(schema) = &configuration.schema {
        let size = serde_json::to_vec(schema).map_or(0, |json| json.len());
        if size > MAX_SCHEMA {
            add("configuration.schema", format!("has {size} bytes as JSON, at most {MAX_SCHEMA} (64 KiB) are allowed"));
        }
    }
    if configuration.namespaces.as_ref().is_some_and(|namespaces| namespaces.len() > MAX_NAMESPACES) {
        add("configuration.namespaces", format!("has more than {MAX_NAMESPACES} items"));
    }
    errors
}

/// Returns the error of a configuration that is for other namespaces than it may be for: a Policy is for its own namespace, and a
/// confidential cluster policy names its namespaces. `at` is the path of the spec, and `namespace` that of a Policy.
#[must_use]
pub fn check_audience(at: &str, namespace: Option<&str>, configuration: &Configuration) -> Option<FieldError> {
    let message = match (namespace, &configuration.namespaces) {
        (Some(own), Some(namespaces)) if namespaces.iter().any(|it| it != own) => format!(
            "has other namespaces than {own}: a Policy is for its own namespace only; remove it, or use a ClusterPolicy"
        ),
        (None, None) if configuration.confidential => {
            "is missing: the body is confidential, so name the namespaces whose PolicySubscriptions may select the policy".to_owned()
        }
        _ => return None,
    };
    Some(FieldError::new(format!("{at}.configuration.namespaces"), message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation;

    #[test]
    fn invalid_configurations_are_refused_with_the_field() {
        let valid = json!({"configuration": {"configName": "memory", "content": {"min": 1}}});
        let cases = [
            ("/configuration/configName", json!(""), Some("spec.configuration.configName")),
            ("/configuration/owner", json!(""), Some("spec.configuration.owner")),
            ("/configuration/attributes", json!({"key": "x".repeat(1025)}), Some("spec.configuration.attributes.key")),
            ("/configuration/template", json!({"cel": "{}"}), Some("spec.configuration")),
            ("/configuration/content", json!(null), Some("spec.configuration")),
            ("/configuration/schema", json!({"title": "x".repeat(MAX_SCHEMA)}), Some("spec.configuration.schema")),
            ("/program", json!({"cel": {"validations": []}}), Some("spec.program")),
            ("/hostCapabilities", json!(["*"]), Some("spec.hostCapabilities")),
            ("/admission", json!({"rules": []}), Some("spec.configuration")),
            ("/settings", json!({"a": 1}), None),
            ("/configuration/confidential", json!(true), None),
        ];
        for (pointer, value, field) in cases {
            let mut spec = valid.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[key] = value;
            let spec: PolicySpec = serde_json::from_value(spec).unwrap();
            let found: Vec<_> = validation::policy(&spec).into_iter().map(|error| error.field).collect();
            assert_eq!(found.first().map(String::as_str), field, "{pointer}: {found:?}");
        }
    }

    #[test]
    fn the_namespaces_are_those_that_the_policy_may_be_for() {
        for (namespace, confidential, namespaces, is_valid) in [
            (None, false, json!(null), true),
            (None, true, json!(null), false),
            (None, true, json!(["a", "b"]), true),
            (None, true, json!([]), true),
            (Some("team"), true, json!(null), true),
            (Some("team"), false, json!(["team"]), true),
            (Some("team"), false, json!(["team", "other"]), false),
        ] {
            let configuration =
                json!({"configName": "a", "content": {}, "confidential": confidential, "namespaces": namespaces});
            let configuration = serde_json::from_value(configuration).unwrap();
            let error = check_audience("spec", namespace, &configuration);
            assert_eq!(error.is_none(), is_valid, "{namespace:?} {configuration:?}");
            assert!(error.is_none_or(|error| error.field == "spec.configuration.namespaces"));
        }
    }

    #[test]
    fn a_spec_without_a_program_round_trips() {
        let json = json!({"configuration": {"configName": "memory", "template": {"cel": "{}"}}});
        let spec: PolicySpec = serde_json::from_value(json).unwrap();
        assert!(spec.program.is_none());
        let json = serde_json::to_value(&spec).unwrap();
        assert!(json.get("program").is_none(), "{json}");
        assert_eq!(serde_json::from_value::<PolicySpec>(json).unwrap(), spec);
    }
}
