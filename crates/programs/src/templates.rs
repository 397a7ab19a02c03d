//! Configuration policies: compiles the template and the JSON Schema of a policy, and computes its body for a component.
//!
//! Templates and schemas are written by tenants. A program with permissions of its own compiles and evaluates them in a child process.

mod error;
mod renderer;

use std::collections::BTreeMap;

use proviso_core::PolicyId;
use proviso_core::configuration::{Candidate, Item, Version};
use proviso_crds::validation::FieldError;
use proviso_crds::{Configuration, PolicySubscriptionSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use error::RenderError;
pub use renderer::{RENDER_TIMEOUT, Renderer};

/// The maximum length of the name of an experiment, in bytes: that of any object in Kubernetes.
const MAX_NAME: usize = 253;

/// The component that a template computes the content for: the variable `component` in CEL, and `input.component` in Rego.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentFacts {
    /// The namespace of the `PolicySubscription`.
    pub namespace: String,
    /// The name of the workload in Kubernetes. For a component outside of Kubernetes, the service component name.
    pub name: String,
    /// The kind of the workload, such as `Deployment`. Templates read no `kind` of a component outside of Kubernetes: `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The labels of the workload. For a component outside of Kubernetes, the labels of its `PolicySubscription`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl ComponentFacts {
    /// Returns the facts of the component of the subscription with this namespace and name. `labels` are those of the workload or, for a
    /// component outside of Kubernetes, those of the subscription.
    #[must_use]
    pub fn new(
        subscription: &PolicySubscriptionSpec,
        (namespace, name): (&str, &str),
        labels: BTreeMap<String, String>,
    ) -> Self {
        let component = subscription.component.as_ref();
        Self {
            namespace: namespace.to_owned(),
            name: component.map_or_else(
                || subscription.service_component_name(namespace, name),
                |component| component.name.clone(),
            ),
            kind: component.map(|component| component.kind.as_str().to_owned()),
            labels,
        }
    }
}

/// Returns the errors of `configuration` that need a compiler: in the template, the schema, the content that is fixed, and its size. The
/// configuration has passed [`proviso_crds::validation::policy`]. `at` is the path of the spec in its object, such as `spec`. Takes up to
/// a few seconds.
#[must_use]
pub fn check_configuration(
    at: &str,
    policy: &PolicyId,
    configuration: &Configuration,
    settings: &Map<String, Value>,
) -> Vec<FieldError> {
    let at_field = |error: FieldError| FieldError::new(format!("{at}.{}", error.field), error.message);
    let renderer = match Renderer::compile(configuration, settings) {
        Ok(renderer) => renderer,
        Err(error) => return vec![at_field(error)],
    };
    let Some(content) = &configuration.content else { return Vec::new() };
    let content = Value::Object(content.clone());
    // The longest version, so that the body stays valid in each later generation and in an experiment.
    let candidate = Candidate { experiment: "x".repeat(MAX_NAME), generation: i64::MAX };
    let version = Version { generation: i64::MAX, candidate: Some(candidate) };
    let policy = configuration.facts(policy.clone(), version);
    let checked = renderer.check_schema(&content);
    let checked = checked.and_then(|()| Ok(Item::new(&policy, &content).map(drop)?));
    let error = checked.err().map(|error| at_field(FieldError::new("configuration.content", error.to_string())));
    error.into_iter().collect()
}

#[cfg(test)]
mod tests;
