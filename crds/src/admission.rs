//! `spec.admission`: the requests to the Kubernetes API that a policy decides about, and the enforcement of its verdicts.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::ParseExpressionError;
use proviso_core::{Enforcement, Match};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The requests to the Kubernetes API that the policy decides about, and how its verdicts are enforced.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// The operations and resources that the policy decides about, as in a ValidatingWebhookConfiguration. At least one rule.
    #[schemars(length(min = 1))]
    pub rules: Vec<RuleWithOperations>,
    /// Limits the policy to objects in namespaces with these labels. Default: objects in all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Limits the policy to objects that have these labels before or after the request. Default: all objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<LabelSelector>,
    /// CEL expressions, as in a ValidatingWebhookConfiguration. The policy decides about a request only if all of them are
    /// true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_conditions: Vec<MatchCondition>,
    /// `Equivalent` also covers other API groups and versions of the resources in `rules`; `Exact` covers only the ones listed.
    /// Default: Equivalent.
    #[serde(default)]
    pub match_policy: MatchPolicy,
    /// The reaction of the API server if the policy server does not answer: `Fail` denies the request, `Ignore` admits it.
    /// Default: Fail.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// The time that the API server waits for an answer, in seconds: 1 to 30. Default: 10.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: u32,
    /// True if the policy may change objects. If false, a request that the policy would change is denied. Default: false.
    #[serde(default)]
    pub mutating: bool,
    /// `Protect` enforces denials. `Monitor` admits every request unchanged, and reports denials only in logs and metrics.
    /// Default: Protect.
    #[serde(default)]
    pub mode: Mode,
    /// A message that replaces the message of every denial. The program's own message becomes a cause of the denial. Default:
    /// the program's own message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Not implemented yet: this field has no effect. True if audit scans of existing objects are to evaluate the policy.
    /// Default: true.
    #[serde(default = "background_audit")]
    pub background_audit: bool,
}

/// The match policy of a webhook: whether other API groups and versions of a resource are covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum MatchPolicy {
    Exact,
    #[default]
    Equivalent,
}

/// The reaction of the API server if the policy server does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailurePolicy {
    /// The request is denied.
    #[default]
    Fail,
    /// The request is admitted.
    Ignore,
}

/// The enforcement mode of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Mode {
    /// Denials are enforced.
    #[default]
    Protect,
    /// Every request is admitted unchanged. Denials are reported only in logs and metrics.
    Monitor,
}

impl Admission {
    /// Returns the matcher of the requests that this section covers.
    ///
    /// # Errors
    /// Fails if a selector has an unknown operator, or no values for an operator that needs some.
    pub fn to_match(&self) -> Result<Match, ParseExpressionError> {
        Match::new(
            self.rules.clone(),
            self.namespace_selector.clone(),
            self.object_selector.clone(),
            self.match_policy == MatchPolicy::Exact,
        )
    }

    /// Returns the requests that this section covers, in a form that can be compared with the coverage of another section.
    #[must_use]
    pub fn coverage(&self) -> AdmissionCoverage {
        AdmissionCoverage {
            rules: self.rules.iter().map(rule).collect(),
            namespaces: requirements(self.namespace_selector.as_ref()),
            objects: requirements(self.object_selector.as_ref()),
            conditions: self.match_conditions.iter().map(|condition| condition.expression.clone()).collect(),
            exact: self.match_policy == MatchPolicy::Exact,
            fails_closed: self.fails_closed() && !self.match_conditions.is_empty(),
        }
    }

    /// Returns true if the API server denies a request when the evaluation of the `matchConditions` fails. Otherwise, it does not ask
    /// the policy then.
    #[must_use]
    pub fn fails_closed(&self) -> bool {
        self.failure_policy == FailurePolicy::Fail
    }

    /// Returns the changes that this section makes to verdicts.
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

/// The requests that an `admission` section covers. Equal values cover the same requests. Unequal values may also cover the
/// same requests, expressed differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionCoverage {
    rules: BTreeSet<Rule>,
    namespaces: BTreeSet<Requirement>,
    objects: BTreeSet<Requirement>,
    conditions: BTreeSet<String>,
    exact: bool,
    /// True if the policy denies the requests on which a condition fails. False if there are no conditions.
    fails_closed: bool,
}

/// Operations, groups, versions, resources, scope.
type Rule = ([BTreeSet<String>; 4], String);
/// A label requirement: key, operator, values.
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

    fn coverage(section: &Value) -> AdmissionCoverage {
        serde_json::from_value::<Admission>(section.clone()).unwrap().coverage()
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
    fn equal_coverage_is_detected_in_any_order_of_rules() {
        let mut other = section();
        other["rules"].as_array_mut().unwrap().reverse();
        other["rules"][1]["operations"].as_array_mut().unwrap().reverse();
        other["rules"][0]["scope"] = json!("*");
        other["objectSelector"] = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
        other["namespaceSelector"] = json!({});
        other["matchConditions"] = json!([{"name": "x", "expression": "1 < 2"}, {"name": "y", "expression": "true"}]);
        other["matchPolicy"] = json!("Equivalent");
        // Enforcement is not a part of the coverage.
        for (field, value) in [("mode", json!("Monitor")), ("mutating", json!(true))] {
            other[field] = value;
        }
        assert_eq!(coverage(&section()), coverage(&other));
        // Without conditions, none can fail.
        let mut without = section();
        without["matchConditions"] = json!([]);
        other["matchConditions"] = json!([]);
        other["failurePolicy"] = json!("Ignore");
        assert_eq!(coverage(&without), coverage(&other));
    }

    #[test]
    fn every_matching_field_changes_the_coverage() {
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
            ("/failurePolicy", json!("Ignore")),
        ] {
            let mut other = section();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            other.pointer_mut(parent).unwrap()[key] = value.clone();
            assert_ne!(coverage(&section()), coverage(&other), "{pointer} = {value}");
        }
    }
}
