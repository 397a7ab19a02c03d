//! The requests that no namespaced policy decides about. The author of a `Policy` often has less power than the sender of a
//! request: a policy that changes a `RoleBinding`, or that reads the token request of a `ServiceAccount`, would raise the power of its
//! author (docs/adr/0021).
//!
//! One list serves the check of rules at admission, the `matchConditions` of webhooks, and the check in each policy server.

mod system;

use std::fmt::Write as _;

use crate::review::GroupVersionResource;

pub use system::{SYSTEM, is_system_request, no_system_request_expression};

/// The reason for which a namespaced policy does not decide about a request.
pub const CONFINED: &str =
    "a namespaced policy covers only its own namespace, and no resource that could raise the power of its author";

/// A part of the Kubernetes API that no namespaced policy decides about.
#[derive(Debug)]
enum Excluded {
    /// All resources of an API group. The names are those that a rule with `apiGroups: ["*"]` may not list either.
    Group(&'static str, &'static [&'static str]),
    /// Resources of an API group, with their subresources.
    Resources(&'static str, &'static [&'static str]),
    /// Subresources of one resource.
    SubResources(&'static str, &'static str, &'static [&'static str]),
}

/// The excluded parts, each with its reason.
static EXCLUDED: [(Excluded, &str); 15] = {
    use Excluded::{Group, Resources, SubResources};
    const SECRETS: &str = "a Policy may not read Secrets, because its author may lack the permission to read them";
    const PERMISSIONS: &str = "a Policy does not decide about permissions, because its author could raise their own";
    const LIMITS: &str =
        "a Policy does not decide about the limits that a cluster administrator sets for its namespace";
    const REVIEWS: &str = "a Policy does not decide about reviews of tokens and permissions";
    const REPORTS: &str =
        "a Policy does not decide about reports and Events, which other programs write about its namespace";
    const PODS: &str =
        "a Policy does not decide about running pods: their status, their eviction, and connections to them";
    const PROVISO: &str = "no policy decides about Proviso's own objects, so that a broken policy can always be fixed";
    [
        (Resources("", &["secrets"]), SECRETS),
        (SubResources("", "serviceaccounts", &["token"]), "a Policy does not decide about tokens of ServiceAccounts"),
        (Group("rbac.authorization.k8s.io", &["roles", "rolebindings"]), PERMISSIONS),
        (Group("authorization.k8s.io", &["localsubjectaccessreviews"]), REVIEWS),
        (Group("authentication.k8s.io", &["tokenreviews"]), REVIEWS),
        (Group("admissionregistration.k8s.io", &[]), PERMISSIONS),
        (Resources("", &["resourcequotas", "limitranges"]), LIMITS),
        (Resources("networking.k8s.io", &["networkpolicies"]), LIMITS),
        (Resources("", &["events"]), REPORTS),
        (Group("events.k8s.io", &["events"]), REPORTS),
        (Group("wgpolicyk8s.io", &["policyreports"]), REPORTS),
        (Group("openreports.io", &["reports"]), REPORTS),
        // The older form of `pods/binding`.
        (Resources("", &["bindings"]), PODS),
        (
            SubResources(
                "",
                "pods",
                &["status", "binding", "eviction", "ephemeralcontainers", "exec", "attach", "portforward", "proxy"],
            ),
            PODS,
        ),
        (Group("proviso.dev", &[]), PROVISO),
    ]
};

impl Excluded {
    fn contains(&self, resource: &GroupVersionResource, sub_resource: &str) -> bool {
        match self {
            Self::Group(group, _) => resource.group == *group,
            Self::Resources(group, resources) => {
                resource.group == *group && resources.contains(&resource.resource.as_str())
            }
            Self::SubResources(group, of, sub_resources) => {
                resource.group == *group && resource.resource == *of && sub_resources.contains(&sub_resource)
            }
        }
    }

    /// Returns the CEL expression that is true for the requests of this part.
    fn expression(&self) -> String {
        let resource = |group: &str| format!("request.resource.group == '{group}' && request.resource.resource");
        match self {
            Self::Group(group, _) => format!("request.resource.group == '{group}'"),
            Self::Resources(group, resources) => format!("({} in {})", resource(group), list(resources)),
            Self::SubResources(group, of, sub_resources) => format!(
                "({} == '{of}' && has(request.subResource) && request.subResource in {})",
                resource(group),
                list(sub_resources)
            ),
        }
    }

    /// Returns the field of a rule that names this part, and the name.
    fn named_by(&self, groups: &[String], resources: &[String]) -> Option<(RuleField, String)> {
        let names_group = |group: &str| groups.iter().any(|it| it == group);
        let may_mean_group = |group: &str| names_group(group) || names_group("*");
        // `pods/exec` names the resource `pods` and the subresource `exec`.
        let parts = |name: &str| {
            name.split_once('/').map_or((name.to_owned(), None), |(a, b)| (a.to_owned(), Some(b.to_owned())))
        };
        let find = |is_excluded: &dyn Fn(&str, Option<&str>) -> bool| {
            let found = resources.iter().find(|name| {
                let (resource, sub_resource) = parts(name);
                is_excluded(&resource, sub_resource.as_deref())
            });
            found.map(|name| (RuleField::Resources, name.clone()))
        };
        match self {
            Self::Group(group, _) if names_group(group) => Some((RuleField::ApiGroups, (*group).to_owned())),
            Self::Group(_, names) if names_group("*") => find(&|resource, _| names.contains(&resource)),
            Self::Resources(group, names) if may_mean_group(group) => find(&|resource, _| names.contains(&resource)),
            Self::SubResources(group, of, names) if may_mean_group(group) => {
                find(&|resource, sub_resource| resource == *of && sub_resource.is_some_and(|it| names.contains(&it)))
            }
            Self::Group(..) | Self::Resources(..) | Self::SubResources(..) => None,
        }
    }
}

/// The field of a rule in `admission.rules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleField {
    ApiGroups,
    Resources,
}

impl RuleField {
    /// Returns the name of the field in a manifest.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiGroups => "apiGroups",
            Self::Resources => "resources",
        }
    }
}

/// A name in a rule of a namespaced policy that no namespaced policy decides about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedName {
    pub field: RuleField,
    pub name: String,
    pub why: &'static str,
}

/// Returns true if no namespaced policy decides about requests for this resource.
#[must_use]
pub fn excludes(resource: &GroupVersionResource, sub_resource: &str) -> bool {
    EXCLUDED.iter().any(|(part, _)| part.contains(resource, sub_resource))
}

/// Returns the excluded names in a rule. A wildcard is no name: it means all resources that are not excluded.
#[must_use]
pub fn excluded_names(groups: &[String], resources: &[String]) -> Vec<ExcludedName> {
    let found = EXCLUDED.iter().filter_map(|(part, why)| Some((part.named_by(groups, resources)?, *why)));
    let mut names: Vec<ExcludedName> = Vec::new();
    for ((field, name), why) in found {
        if names.iter().all(|known| (known.field, &known.name) != (field, &name)) {
            names.push(ExcludedName { field, name, why });
        }
    }
    names
}

/// Returns the CEL expression that is true for the requests that a namespaced policy may decide about, for the `matchConditions` of
/// its webhook.
#[must_use]
pub fn included_expression() -> String {
    let parts: Vec<_> = EXCLUDED.iter().map(|(part, _)| part.expression()).collect();
    format!("!({})", parts.join(" || "))
}

/// Returns a CEL list of strings.
fn list(items: &[&str]) -> String {
    let mut text = String::from("[");
    for (index, item) in items.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{separator}'{item}'");
    }
    text + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group: &str, resource: &str) -> GroupVersionResource {
        GroupVersionResource { group: group.to_owned(), version: "v1".to_owned(), resource: resource.to_owned() }
    }

    #[test]
    fn resources_that_could_raise_the_power_of_an_author_are_excluded() {
        for (group, name, sub_resource) in [
            ("", "secrets", ""),
            ("", "serviceaccounts", "token"),
            ("rbac.authorization.k8s.io", "rolebindings", ""),
            ("rbac.authorization.k8s.io", "roles", ""),
            ("authorization.k8s.io", "localsubjectaccessreviews", ""),
            ("", "resourcequotas", ""),
            ("", "resourcequotas", "status"),
            ("", "limitranges", ""),
            ("networking.k8s.io", "networkpolicies", ""),
            ("", "events", ""),
            ("events.k8s.io", "events", ""),
            ("wgpolicyk8s.io", "policyreports", ""),
            ("openreports.io", "reports", ""),
            ("", "bindings", ""),
            ("", "pods", "status"),
            ("", "pods", "binding"),
            ("", "pods", "eviction"),
            ("", "pods", "ephemeralcontainers"),
            ("", "pods", "exec"),
            ("", "pods", "attach"),
            ("", "pods", "portforward"),
            ("proviso.dev", "policies", ""),
        ] {
            assert!(excludes(&resource(group, name), sub_resource), "{group} {name} {sub_resource}");
        }
        for (group, name, sub_resource) in [
            ("", "pods", ""),
            ("", "pods", "resize"),
            ("", "serviceaccounts", ""),
            ("", "configmaps", ""),
            ("apps", "deployments", "scale"),
            ("networking.k8s.io", "ingresses", ""),
            ("example.com", "secrets", ""),
            ("example.com", "pods", "exec"),
        ] {
            assert!(!excludes(&resource(group, name), sub_resource), "{group} {name} {sub_resource}");
        }
    }

    #[test]
    fn a_rule_may_use_wildcards_but_not_excluded_names() {
        let texts = |items: &[&str]| items.iter().map(ToString::to_string).collect::<Vec<_>>();
        let names = |groups: &[&str], resources: &[&str]| {
            let found = excluded_names(&texts(groups), &texts(resources));
            found.iter().map(|it| format!("{} {}", it.field.as_str(), it.name)).collect::<Vec<_>>()
        };
        for (groups, resources) in [
            (vec!["*"], vec!["*"]),
            (vec!["*"], vec!["*/*"]),
            (vec![""], vec!["*", "pods/*", "*/exec"]),
            (vec!["apps"], vec!["deployments", "secrets"]),
            (vec!["networking.k8s.io"], vec!["*"]),
        ] {
            assert_eq!(names(&groups, &resources), Vec::<String>::new(), "{groups:?} {resources:?}");
        }
        for (groups, resources, expected) in [
            (vec![""], vec!["pods", "secrets"], "resources secrets"),
            (vec!["*"], vec!["secrets/*"], "resources secrets/*"),
            (vec!["rbac.authorization.k8s.io"], vec!["*"], "apiGroups rbac.authorization.k8s.io"),
            (vec!["*"], vec!["rolebindings"], "resources rolebindings"),
            (vec!["", "networking.k8s.io"], vec!["networkpolicies"], "resources networkpolicies"),
            (vec![""], vec!["pods/exec"], "resources pods/exec"),
            (vec!["*"], vec!["serviceaccounts/token"], "resources serviceaccounts/token"),
            (vec![""], vec!["events"], "resources events"),
            (vec!["*"], vec!["events"], "resources events"),
            (vec!["proviso.dev"], vec!["*"], "apiGroups proviso.dev"),
        ] {
            assert_eq!(names(&groups, &resources), [expected], "{groups:?} {resources:?}");
        }
    }

    #[test]
    fn the_expression_names_each_excluded_part() {
        let expression = included_expression();
        for part in [
            "request.resource.group == 'rbac.authorization.k8s.io'",
            "(request.resource.group == '' && request.resource.resource in ['resourcequotas', 'limitranges'])",
            "(request.resource.group == '' && request.resource.resource == 'serviceaccounts' && \
             has(request.subResource) && request.subResource in ['token'])",
        ] {
            assert!(expression.contains(part), "{part}: {expression}");
        }
    }
}
