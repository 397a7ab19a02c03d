//! What a policy of Kubernetes' own is bound to: the resources, and what its denials do.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proviso_crds::validation::FieldError;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::wrong;

/// The spec of a binding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Binding {
    #[serde(rename = "policyName")]
    _policy_name: String,
    param_ref: Option<Value>,
    pub match_resources: Option<MatchResources>,
    #[serde(default)]
    validation_actions: Vec<String>,
}

/// `matchConstraints` of a policy, and `matchResources` of a binding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct MatchResources {
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
    /// Whether denials bite.
    pub(super) fn mode(&self, is_mutating: bool) -> Result<&'static str, FieldError> {
        if self.param_ref.is_some() {
            return Err(wrong("spec.paramRef", "has no equivalent: put the parameters into the policy's `settings`"));
        }
        let has = |action: &str| self.validation_actions.iter().any(|it| it == action);
        match () {
            () if is_mutating => Ok("Protect"),
            () if has("Warn") => {
                let message =
                    "Warn has no equivalent: use Deny, or Audit to see in logs and metrics what would be denied";
                Err(wrong("spec.validationActions", message))
            }
            // A request that is denied is in the audit log with its message anyway.
            () if has("Deny") => Ok("Protect"),
            () if has("Audit") => Ok("Monitor"),
            () => Err(wrong("spec.validationActions", "names none of Deny and Audit")),
        }
    }
}

impl MatchResources {
    /// The `admission` section.
    pub(super) fn admission(&self, at: &str) -> Result<Value, FieldError> {
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
                let message = "has no equivalent beside other rules: make a policy of its own for this rule";
                return Err(wrong(format!("{at}.resourceRules[{index}].resourceNames"), message));
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

    /// Leaves of an `admission` section what is in here, too.
    pub(super) fn narrow(&self, at: &str, admission: &mut Value) -> Result<(), FieldError> {
        self.refuse_exclusions(at)?;
        if !self.resource_rules.is_empty() {
            let message = "has no equivalent: narrow the rules of the policy itself";
            return Err(wrong(format!("{at}.resourceRules"), message));
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
        let message = "has no equivalent: say in the rules, or in matchConditions, what is covered";
        Err(wrong(format!("{at}.excludeResourceRules"), message))
    }
}

/// What a selector requires, as expressions, which can be put together with another's.
fn requirements(selector: &Value) -> Vec<Value> {
    let none = Map::new();
    let labels = selector["matchLabels"].as_object().unwrap_or(&none).iter();
    let labels = labels.map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
    labels.chain(selector["matchExpressions"].as_array().into_iter().flatten().cloned()).collect()
}
