//! Matches requests with a policy's `admission` section, as the API server matches webhooks: by rules, scope, object and
//! namespace selectors. The engines evaluate `matchConditions`, which are CEL.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, ParseExpressionError, Selector, SelectorExt};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::confinement::{self, CONFINED, SYSTEM};
use crate::review::{self, GroupVersionResource, Head, Operation, Review};

/// Labels of objects, by key.
pub type Labels = BTreeMap<String, String>;

/// The label that the API server sets on each namespace.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The API groups of the reviews by which Kubernetes checks credentials and permissions. A policy covers them only if it is a
/// `ClusterPolicy` with a rule that names the group: a `TokenReview` has a bearer token, and a policy that denies a
/// `SubjectAccessReview` stops every component that asks for permissions.
pub const CREDENTIAL_GROUPS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];
/// The reason for which a policy does not cover the reviews of credentials.
const CREDENTIALS: &str = "policies cover reviews of authentication.k8s.io and authorization.k8s.io only if a rule of a ClusterPolicy names the group";

/// The requests that an `admission` section covers.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    rules: Vec<RuleWithOperations>,
    namespace_selector: Selector,
    object_selector: Selector,
    /// True for `matchPolicy: Exact`. False also matches other versions of the same resource.
    is_exact: bool,
    /// The namespace of a namespaced policy, which covers no other namespace; `None` for a `ClusterPolicy`.
    namespace: Option<String>,
    /// True if a namespaced policy does not cover the requests of Kubernetes itself.
    excludes_system_requests: bool,
}

/// The result of matching a request. Unknown facts count as covered: a review without `resource`, a namespace with unknown
/// labels, unreadable labels. One evaluation too many is safer than one too few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    Covered,
    NotCovered {
        /// The field that excludes the request, for people.
        why: &'static str,
    },
}

impl Match {
    /// Returns the match of an `admission` section. `is_exact` is true for `matchPolicy: Exact`.
    ///
    /// # Errors
    /// Returns an error if a selector has an unknown operator or lacks values.
    pub fn new(
        rules: Vec<RuleWithOperations>,
        namespace_selector: Option<LabelSelector>,
        object_selector: Option<LabelSelector>,
        is_exact: bool,
    ) -> Result<Self, ParseExpressionError> {
        Ok(Self {
            rules,
            namespace_selector: namespace_selector.unwrap_or_default().try_into()?,
            object_selector: object_selector.unwrap_or_default().try_into()?,
            is_exact,
            namespace: None,
            excludes_system_requests: false,
        })
    }

    /// Returns this match confined to `namespace`, if there is one, and to the resources that a namespaced policy may decide about
    /// ([`confinement`]).
    #[must_use]
    pub fn confined_to(self, namespace: Option<&str>) -> Self {
        Self { namespace: namespace.map(ToOwned::to_owned), ..self }
    }

    /// Returns this match without the requests of Kubernetes itself, if it is confined to a namespace.
    #[must_use]
    pub fn without_system_requests(self) -> Self {
        Self { excludes_system_requests: self.namespace.is_some(), ..self }
    }

    /// Matches a request. `namespace_labels` returns the labels of the namespace with a given name, if they are known.
    pub fn covers<'a>(&self, review: &Review, namespace_labels: impl Fn(&str) -> Option<&'a Labels>) -> Coverage {
        let Some(head) = review.head() else {
            return Coverage::Covered;
        };
        let covered = [
            (CONFINED, self.is_within_confinement(head)),
            (CREDENTIALS, !self.is_exempt(head)),
            (SYSTEM, self.may_be_asked_by(head)),
            (
                "spec.admission.rules does not cover the request",
                self.rules.iter().any(|rule| rule_covers(rule, head, self.is_exact)),
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

    /// Matches a request by the confinement of a namespaced policy alone: its namespace, and the resources and users that it does not
    /// cover, and by the reviews of credentials. For a request that an API server has matched with the rules and selectors already.
    #[must_use]
    pub fn covers_by_confinement(&self, review: &Review) -> Coverage {
        match review.head() {
            Some(head) if !self.is_within_confinement(head) => Coverage::NotCovered { why: CONFINED },
            Some(head) if self.is_exempt(head) => Coverage::NotCovered { why: CREDENTIALS },
            Some(head) if !self.may_be_asked_by(head) => Coverage::NotCovered { why: SYSTEM },
            _ => Coverage::Covered,
        }
    }

    fn is_within_confinement(&self, head: &Head) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| is_within(namespace, head))
    }

    /// Returns true for a review of credentials that no rule of a `ClusterPolicy` names.
    fn is_exempt(&self, head: &Head) -> bool {
        let group = head.resource.group.as_str();
        CREDENTIAL_GROUPS.contains(&group) && (self.namespace.is_some() || !names_group(&self.rules, group))
    }

    fn may_be_asked_by(&self, head: &Head) -> bool {
        !(self.excludes_system_requests && confinement::is_system_request(head))
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
        // The request for a Namespace has the name of the Namespace as its namespace; a DELETE has the name only in `name`.
        let name = if is_namespace && head.namespace.is_empty() { &head.name } else { &head.namespace };
        if name.is_empty() && !is_namespace {
            return true; // A namespaceSelector does not apply to a cluster-scoped object.
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

/// Returns true if a policy of this namespace may cover the request. A request without a known namespace is not covered.
fn is_within(namespace: &str, head: &Head) -> bool {
    let original = head.request_resource.as_ref().unwrap_or(&head.resource);
    head.namespace == namespace
        && !is_namespace(&head.resource)
        && ![original, &head.resource].into_iter().any(|it| confinement::excludes(it, &head.sub_resource))
}

/// Returns true if a rule names the API group. The wildcard `*` names none.
#[must_use]
pub fn names_group(rules: &[RuleWithOperations], group: &str) -> bool {
    rules.iter().flat_map(|rule| rule.api_groups.iter().flatten()).any(|named| named == group)
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

fn rule_covers(rule: &RuleWithOperations, head: &Head, is_exact: bool) -> bool {
    let operation = head.operation.is_none_or(|operation| lists(rule.operations.as_deref(), operation.as_str()));
    // With `Equivalent`, the API server may have converted the resource of the original request to `resource`.
    let original = head.request_resource.as_ref().unwrap_or(&head.resource);
    let resources = std::iter::once(original).chain((!is_exact).then_some(&head.resource));
    let resource = head.resource.resource.is_empty()
        || scope_covers(rule.scope.as_deref(), head)
            && resources.into_iter().any(|resource| {
                group_covers(rule.api_groups.as_deref(), resource, is_exact)
                    && (!is_exact || lists(rule.api_versions.as_deref(), &resource.version))
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

fn group_covers(groups: Option<&[String]>, resource: &GroupVersionResource, is_exact: bool) -> bool {
    /// The two API groups that serve the same Event objects.
    const EVENTS: [&str; 2] = ["", "events.k8s.io"];
    lists(groups, &resource.group)
        || (!is_exact
            && resource.resource == "events"
            && EVENTS.contains(&resource.group.as_str())
            && EVENTS.iter().any(|group| lists(groups, group)))
}

/// Matches a resource with a pattern. `*` matches all resources and no subresource; `a/*` and `*/b` match subresources.
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

/// Returns the labels in the metadata of a parsed object, without labels whose value is not a string.
#[must_use]
pub fn labels(metadata: &Value) -> Labels {
    let labels = metadata["labels"].as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns `metadata.labels` of a Kubernetes object; empty if it has none. `None` if the JSON is not a Kubernetes object, or
/// has duplicate members.
pub(crate) fn labels_of(object: &str) -> Option<Labels> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Option<&'a RawValue>,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        labels: Option<Labels>,
    }
    let metadata = match parse_object::<Object<'_>>(object)?.metadata {
        Some(metadata) => parse_object(metadata.get())?,
        None => Metadata::default(),
    };
    Some(metadata.labels.unwrap_or_default())
}

/// Parses the members of a JSON object. The check is needed because serde's derived code also accepts a list.
fn parse_object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    json.starts_with('{').then(|| review::parse(json).ok())?
}

#[cfg(test)]
mod tests;
