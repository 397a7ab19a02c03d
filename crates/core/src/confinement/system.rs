//! Requests of Kubernetes itself: of nodes, of the accounts of control plane components, and of `system:masters`.
//!
//! A namespaced policy is asked about them only if the administrator of its `PolicyServer` allows it. The controllers that create the
//! objects of a workload are an exception: they act for a Deployment or Job in the namespace of the policy, and each Pod of a
//! Deployment would escape the policy otherwise.

use super::list;
use crate::review::{GroupVersionResource, Head, Operation};

/// The reason for which a namespaced policy is not asked about a request of Kubernetes itself.
pub const SYSTEM: &str = "a namespaced policy of this PolicyServer is not asked about requests of system:masters, of nodes and of \
                          accounts in kube-system";

/// The groups whose requests are requests of Kubernetes itself.
const GROUPS: [&str; 2] = ["system:masters", "system:nodes"];
/// The users of control plane components without a `ServiceAccount`.
const USERS: [&str; 4] = ["system:apiserver", CONTROLLER_MANAGER, "system:kube-proxy", "system:kube-scheduler"];
/// The user of all controllers of Kubernetes, if they have no `ServiceAccounts` of their own
/// (`--use-service-account-credentials=false`).
const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The beginning of the names of `ServiceAccounts` in kube-system.
const ACCOUNTS: &str = "system:serviceaccount:kube-system:";
/// The controllers that create and update the objects of workloads.
const WORKLOAD_CONTROLLERS: [&str; 9] = [
    CONTROLLER_MANAGER,
    "system:serviceaccount:kube-system:cronjob-controller",
    "system:serviceaccount:kube-system:daemon-set-controller",
    "system:serviceaccount:kube-system:deployment-controller",
    "system:serviceaccount:kube-system:ephemeral-volume-controller",
    "system:serviceaccount:kube-system:job-controller",
    "system:serviceaccount:kube-system:replicaset-controller",
    "system:serviceaccount:kube-system:replication-controller",
    "system:serviceaccount:kube-system:statefulset-controller",
];
/// The objects of workloads that these controllers create, by API group.
const WORKLOAD_RESOURCES: [(&str, &[&str]); 3] = [
    ("", &["pods", "persistentvolumeclaims"]),
    ("apps", &["replicasets", "controllerrevisions"]),
    ("batch", &["jobs"]),
];

/// Returns true if Kubernetes itself sends the request, except for the objects of workloads.
#[must_use]
pub fn is_system_request(head: &Head) -> bool {
    let user = head.user.username.as_str();
    let is_system = head.user.groups.iter().any(|group| GROUPS.contains(&group.as_str()))
        || USERS.contains(&user)
        || user.starts_with(ACCOUNTS);
    is_system && !is_of_workload(head)
}

/// Returns true if a controller creates or updates an object of a workload.
fn is_of_workload(head: &Head) -> bool {
    let is_workload = |resource: &GroupVersionResource| {
        let known = WORKLOAD_RESOURCES.iter().find(|(group, _)| *group == resource.group);
        known.is_some_and(|(_, resources)| resources.contains(&resource.resource.as_str()))
    };
    WORKLOAD_CONTROLLERS.contains(&head.user.username.as_str())
        && matches!(head.operation, Some(Operation::Create | Operation::Update))
        && head.sub_resource.is_empty()
        && is_workload(&head.resource)
}

/// Returns the CEL expression that is false for the requests of [`is_system_request`], for the `matchConditions` of a webhook.
#[must_use]
pub fn no_system_request_expression() -> String {
    let groups: Vec<_> = GROUPS.iter().map(|group| format!("'{group}' in request.userInfo.groups")).collect();
    let workloads: Vec<_> = WORKLOAD_RESOURCES
        .iter()
        .map(|(group, resources)| {
            format!("(request.resource.group == '{group}' && request.resource.resource in {})", list(resources))
        })
        .collect();
    format!(
        "(!((has(request.userInfo.groups) && ({groups})) || request.userInfo.username in {users} || \
         request.userInfo.username.startsWith('{ACCOUNTS}')) || \
         (request.userInfo.username in {controllers} && request.operation in ['CREATE', 'UPDATE'] && \
         !has(request.subResource) && ({workloads})))",
        groups = groups.join(" || "),
        users = list(&USERS),
        controllers = list(&WORKLOAD_CONTROLLERS),
        workloads = workloads.join(" || "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::UserInfo;

    fn head(user: &str, groups: &[&str], operation: Operation, resource: (&str, &str, &str)) -> Head {
        let (group, resource, sub_resource) = resource;
        Head {
            resource: GroupVersionResource {
                group: group.to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
            },
            sub_resource: sub_resource.to_owned(),
            operation: Some(operation),
            user: UserInfo { username: user.to_owned(), groups: groups.iter().map(ToString::to_string).collect() },
            ..Head::default()
        }
    }

    #[test]
    fn requests_of_kubernetes_itself_are_recognised_by_user_and_group() {
        use Operation::{Create, Delete, Update};
        let (pods, replica_set) = (("", "pods", ""), "system:serviceaccount:kube-system:replicaset-controller");
        for (user, groups, operation, resource) in [
            ("kubernetes-admin", &["system:masters"][..], Create, pods),
            ("system:node:a", &["system:nodes"], Update, pods),
            ("system:serviceaccount:kube-system:namespace-controller", &[], Delete, pods),
            ("system:kube-scheduler", &[], Create, pods),
            ("system:kube-controller-manager", &[], Create, ("", "serviceaccounts", "")),
            // A controller of workloads is asked about for the objects that it creates only.
            (replica_set, &[], Delete, pods),
            (replica_set, &[], Update, ("", "pods", "status")),
            (replica_set, &[], Create, ("", "configmaps", "")),
        ] {
            assert!(is_system_request(&head(user, groups, operation, resource)), "{user} {operation:?} {resource:?}");
        }
        for (user, groups, operation, resource) in [
            ("ann", &["system:authenticated"][..], Create, pods),
            ("system:serviceaccount:team:deployer", &["system:serviceaccounts"], Create, pods),
            // Each Pod of a Deployment would escape the policy otherwise.
            (replica_set, &["system:serviceaccounts:kube-system"], Create, pods),
            ("system:serviceaccount:kube-system:deployment-controller", &[], Create, ("apps", "replicasets", "")),
            ("system:serviceaccount:kube-system:cronjob-controller", &[], Create, ("batch", "jobs", "")),
            (
                "system:serviceaccount:kube-system:statefulset-controller",
                &[],
                Create,
                ("", "persistentvolumeclaims", ""),
            ),
            ("system:kube-controller-manager", &[], Create, pods),
            ("system:serviceaccount:kube-system-imitation:a", &[], Create, pods),
        ] {
            assert!(!is_system_request(&head(user, groups, operation, resource)), "{user} {operation:?} {resource:?}");
        }
    }
}
