//! The permissions of the configuration API in Kubernetes.

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use proviso_configuration_api::Permission;

/// Returns the attributes of a permission for a `SubjectAccessReview`.
pub(super) fn attributes(permission: Permission<'_>) -> ResourceAttributes {
    let (group, subscriptions) = (proviso_crds::GROUP, "policysubscriptions");
    let (verb, group, resource, namespace, name) = match permission {
        Permission::ReadPolicy(id) => ("get", group, policies(id.namespace()), id.namespace(), Some(id.name())),
        Permission::ListPolicies(namespace) => ("list", group, policies(namespace), namespace, None),
        Permission::ListNamespacedPolicies => ("list", group, "policies", None, None),
        Permission::ReadSecrets(namespace) => ("get", "", "secrets", namespace, None),
        Permission::ReadConfigMap { namespace, name } => ("get", "", "configmaps", Some(namespace), Some(name)),
        Permission::ReadSubscription { namespace, name } => ("get", group, subscriptions, Some(namespace), Some(name)),
        Permission::ListSubscriptions(namespace) => ("list", group, subscriptions, namespace, None),
        Permission::ChangeSubscription { namespace, name } => {
            ("patch", group, subscriptions, Some(namespace), Some(name))
        }
        Permission::ChangeSubscriptions(namespace) => ("patch", group, subscriptions, namespace, None),
    };
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        namespace: namespace.map(ToOwned::to_owned),
        name: name.map(ToOwned::to_owned),
        ..ResourceAttributes::default()
    }
}

/// Returns the resource of the policies of a namespace, or of the cluster (`None`).
fn policies(namespace: Option<&str>) -> &'static str {
    if namespace.is_some() { "policies" } else { "clusterpolicies" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_kubectl() {
        let [cluster, own] = ["cluster.a", "ns.team.a"].map(|id| id.parse().unwrap());
        for (permission, expected) in [
            (Permission::ReadPolicy(&cluster), "get proviso.dev clusterpolicies - a"),
            (Permission::ReadPolicy(&own), "get proviso.dev policies team a"),
            (Permission::ListPolicies(None), "list proviso.dev clusterpolicies - -"),
            (Permission::ListPolicies(Some("team")), "list proviso.dev policies team -"),
            (Permission::ListNamespacedPolicies, "list proviso.dev policies - -"),
            (Permission::ReadSecrets(None), "get  secrets - -"),
            (Permission::ReadSecrets(Some("team")), "get  secrets team -"),
            (Permission::ReadConfigMap { namespace: "team", name: "m" }, "get  configmaps team m"),
            (
                Permission::ReadSubscription { namespace: "team", name: "s" },
                "get proviso.dev policysubscriptions team s",
            ),
            (Permission::ListSubscriptions(None), "list proviso.dev policysubscriptions - -"),
            (
                Permission::ChangeSubscription { namespace: "team", name: "s" },
                "patch proviso.dev policysubscriptions team s",
            ),
            (Permission::ChangeSubscriptions(Some("team")), "patch proviso.dev policysubscriptions team -"),
        ] {
            let ResourceAttributes { verb, group, resource, namespace, name, .. } = attributes(permission);
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let found = [or_none(verb), or_none(group), or_none(resource), or_none(namespace), or_none(name)].join(" ");
            assert_eq!(found, expected);
        }
    }
}
