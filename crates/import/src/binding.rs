//! Bindings of Kubernetes admission policies: the resources that a policy covers, and the effect of a denial.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proviso_crds::validation::FieldError;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The spec of a binding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Binding {
    #[serde(rename = "policyName")]
    _policy_name: String,
    param_ref: Option<Value>,
    pub match_resources: Option<MatchResources>,
    #[serde(default)]
    validation_actions: Vec<String>,
}

/// The `matchConstraints` of a policy, or the `matchResources` of a binding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct MatchResources {
    #[serde(default)]
    resource_rules: Vec<Rule>,
    #[serde(default)]
    exclude_resource_rules: Vec<Value>,
    match_policy: Option<String>,
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    #[serde(default)]
    api_groups: Vec<String>,
    #[serde(default)]
    api_versions: Vec<String>,
    #[serde(default)]
    operations: Vec<String>,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    scope: Option<String>,
}

impl Binding {
    /// Returns the mode of the policy.
    ///
    /// # Errors
    /// Returns an error for parameters, and for validation actions without an equivalent.
    pub(crate) fn mode(&self, is_mutating: bool) -> Result<&'static str, FieldError> {
        if self.param_ref.is_some() {
            return Err(FieldError::new(
                "spec.paramRef",
                "has no equivalent: put the parameters into the policy's `settings`",
            ));
        }
        let has = |action: &str| self.validation_actions.iter().any(|it| it == action);
        match () {
            () if is_mutating => Ok("Protect"),
            () if has("Warn") => {
                let message =
                    "Warn has no equivalent: use Deny, or Audit to see in logs and metrics what would be denied";
                Err(FieldError::new("spec.validationActions", message))
            }
            // Audit adds nothing to Deny: the audit log has the message of a denied request in any case.
            () if has("Deny") => Ok("Protect"),
            () if has("Audit") => Ok("Monitor"),
            () => Err(FieldError::new("spec.validationActions", "has neither Deny nor Audit")),
        }
    }
}

impl MatchResources {
    /// Returns the `admission` section of the policy. `at` is the field of these match resources, for errors.
    pub(crate) fn admission(&self, at: &str) -> Result<Value, FieldError> {
        self.refuse_exclusions(at)?;
        let mut rules = Vec::new();
        let mut conditions = Vec::new();
        for (index, rule) in self.resource_rules.iter().enumerate() {
            let mut out = json!({
                "apiGroups": rule.api_groups, "apiVersions": rule.api_versions, "operations": rule.operations,
                "resources": rule.resources,
            });
            if let Some(scope) = &rule.scope {
                out["scope"] = scope.as_str().into();
            }
            rules.push(out);
            if rule.resource_names.is_empty() {
                continue;
            }
            if self.resource_rules.len() > 1 {
                let message = "has no equivalent together with other rules: create a separate policy for this rule";
                return Err(FieldError::new(format!("{at}.resourceRules[{index}].resourceNames"), message));
            }
            let expression = format!("request.name in {}", json!(rule.resource_names));
            conditions.push(json!({"name": "resource-names", "expression": expression}));
        }
        let mut admission = json!({"rules": rules});
        let optional = [
            ("matchConditions", (!conditions.is_empty()).then(|| conditions.into())),
            ("matchPolicy", self.match_policy.as_ref().map(|it| json!(it))),
            ("namespaceSelector", self.namespace_selector.as_ref().map(|it| json!(it))),
            ("objectSelector", self.object_selector.as_ref().map(|it| json!(it))),
        ];
        for (field, value) in optional {
            if let Some(value) = value {
                admission[field] = value;
            }
        }
        Ok(admission)
    }

    /// Narrows an `admission` section to these match resources. `at` is their field, for errors.
    pub(crate) fn narrow(&self, at: &str, admission: &mut Value) -> Result<(), FieldError> {
        self.refuse_exclusions(at)?;
        if !self.resource_rules.is_empty() {
            let message = "has no equivalent: narrow the rules of the policy itself";
            return Err(FieldError::new(format!("{at}.resourceRules"), message));
        }
        for (field, selector) in
            [("namespaceSelector", &self.namespace_selector), ("objectSelector", &self.object_selector)]
        {
            if let Some(selector) = selector {
                let both = requirements(&admission[field]).into_iter().chain(requirements(&json!(selector)));
                let both: Vec<_> = both.collect();
                admission[field] = if both.is_empty() { json!({}) } else { json!({"matchExpressions": both}) };
            }
        }
        Ok(())
    }

    fn refuse_exclusions(&self, at: &str) -> Result<(), FieldError> {
        if self.exclude_resource_rules.is_empty() {
            return Ok(());
        }
        let message = "has no equivalent: restrict the rules, or use matchConditions";
        Err(FieldError::new(format!("{at}.excludeResourceRules"), message))
    }
}

/// Returns a selector as a list of expressions, so that two selectors can be joined.
fn requirements(selector: &Value) -> Vec<Value> {
    let none = Map::new();
    let labels = selector["matchLabels"].as_object().unwrap_or(&none).iter();
    let labels = labels.map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
    labels.chain(selector["matchExpressions"].as_array().into_iter().flatten().cloned()).collect()
}
