//! Which requests a policy's `admission` section covers, by the rules of the API server's own webhook matching:
//! rules, scope, object and namespace selectors. (`matchConditions` are CEL: they are for the engines.)

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, ParseExpressionError, Selector, SelectorExt};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::review::{self, GroupVersionResource, Head, Operation, Review};

/// Labels of objects, by key.
pub type Labels = BTreeMap<String, String>;

/// The API group of Proviso's kinds.
const OUR_GROUP: &str = "proviso.dev";
/// The label that the API server gives every namespace.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// What an `admission` section covers.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    rules: Vec<RuleWithOperations>,
    namespace_selector: Selector,
    object_selector: Selector,
    /// `matchPolicy: Exact`; else other versions of the same resource match too.
    exact: bool,
    /// Of a policy that belongs to a namespace: the only one that it decides about.
    only: Option<String>,
}

/// Whether a request is covered. What cannot be known (a review without `resource`, a namespace whose labels
/// nobody told, labels that cannot be read) counts as covered: asking a policy too often is safer than too rarely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    Covered,
    NotCovered {
        /// In words: the field that leaves the request out.
        why: &'static str,
    },
}

impl Match {
    /// # Errors
    /// When a selector has an unknown operator or lacks values.
    pub fn new(
        rules: Vec<RuleWithOperations>,
        namespace_selector: Option<LabelSelector>,
        object_selector: Option<LabelSelector>,
        exact: bool,
    ) -> Result<Self, ParseExpressionError> {
        Ok(Self {
            rules,
            namespace_selector: namespace_selector.unwrap_or_default().try_into()?,
            object_selector: object_selector.unwrap_or_default().try_into()?,
            exact,
            only: None,
        })
    }

    /// The same within one namespace: what a policy that belongs to it may decide about, whatever its rules say. Not about
    /// Secrets, which its owner need not be allowed to read, nor about policies, so that it cannot protect itself.
    #[must_use]
    pub fn confined_to(self, namespace: Option<&str>) -> Self {
        Self { only: namespace.map(ToOwned::to_owned), ..self }
    }

    /// Whether the request is covered. `namespace_labels` knows the labels of namespaces by their name.
    pub fn covers<'a>(&self, review: &Review, namespace_labels: impl Fn(&str) -> Option<&'a Labels>) -> Coverage {
        let Some(head) = review.head() else {
            return Coverage::Covered;
        };
        let covered = [
            (
                "a policy of a namespace decides about that namespace only, and not about Secrets or policies",
                self.only.as_ref().is_none_or(|namespace| is_within(namespace, head)),
            ),
            (
                "spec.admission.rules does not cover the request",
                self.rules.iter().any(|rule| rule_covers(rule, head, self.exact)),
            ),
            (
                "spec.admission.namespaceSelector does not cover the request",
                self.namespace_is_selected(review, head, namespace_labels),
            ),
            ("spec.admission.objectSelector does not cover the request", self.object_is_selected(review)),
        ];
        covered
            .into_iter()
            .find(|(_, covered)| !covered)
            .map_or(Coverage::Covered, |(why, _)| Coverage::NotCovered { why })
    }

    fn namespace_is_selected<'a>(
        &self,
        review: &Review,
        head: &Head,
        namespace_labels: impl Fn(&str) -> Option<&'a Labels>,
    ) -> bool {
        if self.namespace_selector.selects_all() {
            return true;
        }
        let is_namespace = is_namespace(&head.resource) && head.sub_resource.is_empty();
        // A Namespace's requests carry its own name as their namespace; DELETE of one has it in `name`.
        let name = if is_namespace && head.namespace.is_empty() { &head.name } else { &head.namespace };
        if name.is_empty() && !is_namespace {
            return true; // Cluster-scoped: a namespaceSelector does not concern it.
        }
        let is_written = matches!(head.operation, Some(Operation::Create | Operation::Update));
        let known = match review.object_json().filter(|_| is_namespace && is_written).map(labels_of) {
            Some(None) => return true,
            Some(own_labels) => own_labels,
            None => namespace_labels(name).cloned(),
        };
        let is_known = known.is_some();
        let mut labels = known.unwrap_or_default();
        if !name.is_empty() {
            labels.insert(NAMESPACE_NAME_LABEL.to_owned(), name.clone());
        }
        self.namespace_selector
            .clone()
            .into_iter()
            .filter(|expression| is_known || key(expression) == NAMESPACE_NAME_LABEL)
            .all(|expression| expression.matches(&labels))
    }

    fn object_is_selected(&self, review: &Review) -> bool {
        self.object_selector.selects_all()
            || [review.object_json(), review.old_object_json()]
                .into_iter()
                .flatten()
                .any(|object| labels_of(object).is_none_or(|labels| self.object_selector.matches(&labels)))
    }
}

/// Whether a policy of this namespace may decide about the request. Here what cannot be known is nobody's.
fn is_within(namespace: &str, head: &Head) -> bool {
    let original = head.request_resource.as_ref().unwrap_or(&head.resource);
    let is_secret = |it: &GroupVersionResource| it.group.is_empty() && it.resource == "secrets";
    let is_ours = |it: &GroupVersionResource| it.group == OUR_GROUP;
    head.namespace == namespace
        && !is_namespace(&head.resource)
        && ![original, &head.resource].into_iter().any(|it| is_secret(it) || is_ours(it))
}

fn key(expression: &Expression) -> &str {
    match expression {
        Expression::In(key, _)
        | Expression::NotIn(key, _)
        | Expression::Equal(key, _)
        | Expression::NotEqual(key, _)
        | Expression::Exists(key)
        | Expression::DoesNotExist(key) => key,
    }
}

fn rule_covers(rule: &RuleWithOperations, head: &Head, exact: bool) -> bool {
    let operation = head.operation.is_none_or(|operation| lists(rule.operations.as_deref(), operation.as_str()));
    // With `Equivalent`, `resource` may be what the API server converted the original request's resource to.
    let original = head.request_resource.as_ref().unwrap_or(&head.resource);
    let resources = std::iter::once(original).chain((!exact).then_some(&head.resource));
    let resource = head.resource.resource.is_empty()
        || scope_covers(rule.scope.as_deref(), head)
            && resources.into_iter().any(|resource| {
                group_covers(rule.api_groups.as_deref(), resource, exact)
                    && (!exact || lists(rule.api_versions.as_deref(), &resource.version))
                    && rule
                        .resources
                        .iter()
                        .flatten()
                        .any(|pattern| resource_covers(pattern, resource, &head.sub_resource))
            });
    operation && resource
}

fn lists(patterns: Option<&[String]>, value: &str) -> bool {
    patterns.unwrap_or_default().iter().any(|pattern| pattern == "*" || pattern == value)
}

fn group_covers(groups: Option<&[String]>, resource: &GroupVersionResource, exact: bool) -> bool {
    /// The two groups that serve the same objects under the same resource name.
    const EVENTS: [&str; 2] = ["", "events.k8s.io"];
    lists(groups, &resource.group)
        || (!exact
            && resource.resource == "events"
            && EVENTS.contains(&resource.group.as_str())
            && EVENTS.iter().any(|group| lists(groups, group)))
}

/// `*` is every resource but no subresource; `a/*` and `*/b` stand for subresources.
fn resource_covers(pattern: &str, resource: &GroupVersionResource, sub_resource: &str) -> bool {
    let (wanted, wanted_sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    (wanted == "*" || wanted == resource.resource) && (wanted_sub == "*" || wanted_sub == sub_resource)
}

fn scope_covers(scope: Option<&str>, head: &Head) -> bool {
    let is_cluster_scoped = head.namespace.is_empty() || is_namespace(&head.resource);
    match scope {
        Some("Cluster") => is_cluster_scoped,
        Some("Namespaced") => !is_cluster_scoped,
        _ => true,
    }
}

fn is_namespace(resource: &GroupVersionResource) -> bool {
    resource.group.is_empty() && resource.resource == "namespaces"
}

/// The labels in the metadata of an object that was read. What is no text is left out.
#[must_use]
pub fn labels(metadata: &Value) -> Labels {
    let labels = metadata["labels"].as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// `metadata.labels` of a Kubernetes object, empty where it has none; None where they cannot be read: what is no
/// such object, or says them twice.
fn labels_of(object: &str) -> Option<Labels> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Option<&'a RawValue>,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        labels: Option<Labels>,
    }
    let metadata = match members::<Object<'_>>(object)?.metadata {
        Some(metadata) => members(metadata.get())?,
        None => Metadata::default(),
    };
    Some(metadata.labels.unwrap_or_default())
}

/// The members of a JSON object. What serde derives would take them from a list too.
fn members<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    json.starts_with('{').then(|| review::parse(json).ok())?
}

#[cfg(test)]
mod tests;
