//! `spec.admission`: which requests to the Kubernetes API a policy decides about, and what its verdict does.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::ParseExpressionError;
use proviso_core::{Enforcement, Match};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which requests to the Kubernetes API a policy decides about, and what its verdict does.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// Operations and resources, as in a ValidatingWebhookConfiguration.
    #[schemars(length(min = 1))]
    pub rules: Vec<RuleWithOperations>,
    /// Only objects in namespaces with these labels. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Only objects with these labels, before or after the request. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<LabelSelector>,
    /// CEL expressions that must all be true for the policy to be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_conditions: Vec<MatchCondition>,
    /// Whether other versions of the resources in `rules` are covered too. Default: Equivalent.
    #[serde(default)]
    pub match_policy: MatchPolicy,
    /// What the API server does when the policy server does not answer. Default: Fail.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// How long the API server waits for an answer, in seconds: 1 to 30. Default: 10.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: u32,
    /// Whether the policy may change objects. A change by a policy that may not is a denial. Default: false.
    #[serde(default)]
    pub mutating: bool,
    /// Whether denials bite. Default: Protect.
    #[serde(default)]
    pub mode: Mode,
    /// Replaces the message of every denial; the program's own becomes a cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether audits of existing objects ask this policy. Default: true.
    #[serde(default = "background_audit")]
    pub background_audit: bool,
}

/// Whether other versions of a resource are covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum MatchPolicy {
    Exact,
    #[default]
    Equivalent,
}

/// What happens to a request when the policy server does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailurePolicy {
    /// It is denied.
    #[default]
    Fail,
    /// It is let through.
    Ignore,
}

/// Whether denials bite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Mode {
    /// A denial denies.
    #[default]
    Protect,
    /// Everything is allowed and nothing is changed; denials show in logs and metrics.
    Monitor,
}

impl Admission {
    /// What this section covers.
    ///
    /// # Errors
    /// When a selector has an unknown operator or lacks values.
    pub fn to_match(&self) -> Result<Match, ParseExpressionError> {
        Match::new(
            self.rules.clone(),
            self.namespace_selector.clone(),
            self.object_selector.clone(),
            self.match_policy == MatchPolicy::Exact,
        )
    }

    /// Which requests it covers, to be compared with another's.
    #[must_use]
    pub fn reach(&self) -> Reach {
        Reach {
            rules: self.rules.iter().map(rule).collect(),
            namespaces: requirements(self.namespace_selector.as_ref()),
            objects: requirements(self.object_selector.as_ref()),
            conditions: self.match_conditions.iter().map(|condition| condition.expression.clone()).collect(),
            exact: self.match_policy == MatchPolicy::Exact,
        }
    }

    /// What this section does to verdicts.
    #[must_use]
    pub fn to_enforcement(&self) -> Enforcement {
        Enforcement {
            mode: match self.mode {
                Mode::Protect => proviso_core::Mode::Protect,
                Mode::Monitor => proviso_core::Mode::Monitor,
            },
            mutating: self.mutating,
            message: self.message.clone(),
        }
    }
}

/// Which requests an `admission` section covers. Two that are equal cover the same ones; two that are not may do so in other
/// words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    rules: BTreeSet<Rule>,
    namespaces: BTreeSet<Requirement>,
    objects: BTreeSet<Requirement>,
    conditions: BTreeSet<String>,
    exact: bool,
}

/// Operations, groups, versions, resources, scope.
type Rule = ([BTreeSet<String>; 4], String);
/// Of a label: key, operator, values.
type Requirement = (String, String, BTreeSet<String>);

fn rule(rule: &RuleWithOperations) -> Rule {
    let lists = [&rule.operations, &rule.api_groups, &rule.api_versions, &rule.resources];
    (lists.map(|list| list.iter().flatten().cloned().collect()), rule.scope.clone().unwrap_or_else(|| "*".to_owned()))
}

fn requirements(selector: Option<&LabelSelector>) -> BTreeSet<Requirement> {
    let labels = selector.iter().flat_map(|it| it.match_labels.iter().flatten());
    let labels = labels.map(|(key, value)| (key.clone(), "In".to_owned(), BTreeSet::from([value.clone()])));
    let expressions = selector.iter().flat_map(|it| it.match_expressions.iter().flatten());
    let expressions =
        expressions.map(|it| (it.key.clone(), it.operator.clone(), it.values.iter().flatten().cloned().collect()));
    labels.chain(expressions).collect()
}

fn timeout_seconds() -> u32 {
    10
}

fn background_audit() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn reach(section: &Value) -> Reach {
        serde_json::from_value::<Admission>(section.clone()).unwrap().reach()
    }

    fn section() -> Value {
        json!({
            "rules": [
                {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
                {"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]},
            ],
            "objectSelector": {"matchLabels": {"a": "b"}},
            "matchConditions": [{"name": "one", "expression": "true"}, {"name": "two", "expression": "1 < 2"}],
        })
    }

    #[test]
    fn what_covers_the_same_is_the_same_in_any_order() {
        let mut other = section();
        other["rules"].as_array_mut().unwrap().reverse();
        other["rules"][1]["operations"].as_array_mut().unwrap().reverse();
        other["rules"][0]["scope"] = json!("*");
        other["objectSelector"] = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
        other["namespaceSelector"] = json!({});
        other["matchConditions"] = json!([{"name": "x", "expression": "1 < 2"}, {"name": "y", "expression": "true"}]);
        other["matchPolicy"] = json!("Equivalent");
        // How it is enforced does not matter.
        for (field, value) in
            [("mode", json!("Monitor")), ("mutating", json!(true)), ("failurePolicy", json!("Ignore"))]
        {
            other[field] = value;
        }
        assert_eq!(reach(&section()), reach(&other));
    }

    #[test]
    fn every_field_that_says_which_requests_makes_a_difference() {
        for (pointer, value) in [
            ("/rules/0/operations", json!(["CREATE"])),
            ("/rules/0/apiGroups", json!(["*"])),
            ("/rules/0/apiVersions", json!(["*"])),
            ("/rules/0/resources", json!(["pods", "pods/exec"])),
            ("/rules/0/scope", json!("Namespaced")),
            ("/objectSelector", Value::Null),
            ("/objectSelector", json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]})),
            ("/namespaceSelector", json!({"matchLabels": {"a": "b"}})),
            ("/matchConditions", json!([])),
            ("/matchPolicy", json!("Exact")),
        ] {
            let mut other = section();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            other.pointer_mut(parent).unwrap()[key] = value.clone();
            assert_ne!(reach(&section()), reach(&other), "{pointer} = {value}");
        }
    }
}
