//! The resources of kinds, such as `ingresses` for `Ingress`. Constraints match kinds, but webhooks match resources. The caller
//! must name the resources of custom kinds, because a wrong guess would go unnoticed.

use std::collections::BTreeMap;

use proviso_evaluation::plural;

/// The kinds of Kubernetes by their API group.
const KNOWN: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "Namespace",
            "Node",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "Service",
            "ServiceAccount",
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io", &["APIService"]),
    ("apps", &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
    ("authentication.k8s.io", &["SelfSubjectReview", "TokenReview"]),
    (
        "authorization.k8s.io",
        &["LocalSubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"],
    ),
    ("autoscaling", &["HorizontalPodAutoscaler"]),
    ("batch", &["CronJob", "Job"]),
    ("certificates.k8s.io", &["CertificateSigningRequest"]),
    ("coordination.k8s.io", &["Lease"]),
    ("discovery.k8s.io", &["EndpointSlice"]),
    ("events.k8s.io", &["Event"]),
    ("extensions", &["DaemonSet", "Deployment", "Ingress", "NetworkPolicy", "PodSecurityPolicy", "ReplicaSet"]),
    ("flowcontrol.apiserver.k8s.io", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("networking.k8s.io", &["Ingress", "IngressClass", "IPAddress", "NetworkPolicy", "ServiceCIDR"]),
    ("node.k8s.io", &["RuntimeClass"]),
    ("policy", &["PodDisruptionBudget", "PodSecurityPolicy"]),
    ("rbac.authorization.k8s.io", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    ("scheduling.k8s.io", &["PriorityClass"]),
    ("storage.k8s.io", &["CSIDriver", "CSINode", "CSIStorageCapacity", "StorageClass", "VolumeAttachment"]),
];

/// The resource names of custom kinds, by kind: such as `gateways` for `Gateway`.
pub type ResourceNames = BTreeMap<String, String>;

/// Returns the resource of a kind of Kubernetes, or of a kind in `named`; `None` for any other kind.
pub(crate) fn known(groups: &[String], kind: &str, named: &ResourceNames) -> Option<String> {
    if let Some(plural) = named.get(kind) {
        return Some(plural.clone());
    }
    let is_group = |group: &str| groups.iter().any(|it| it == "*" || it == group);
    let is_known = KNOWN.iter().any(|(group, kinds)| is_group(group) && kinds.contains(&kind));
    is_known.then(|| plural(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_of_a_custom_kind_must_be_named() {
        let groups = |groups: &[&str]| groups.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let none = ResourceNames::new();
        assert_eq!(known(&groups(&["apps"]), "Deployment", &none).as_deref(), Some("deployments"));
        assert_eq!(known(&groups(&["*"]), "Deployment", &none).as_deref(), Some("deployments"));
        assert_eq!(known(&groups(&["example.com"]), "Deployment", &none), None);
        assert_eq!(known(&groups(&["*"]), "Widget", &none), None);
        let named = ResourceNames::from([("Widget".to_owned(), "widgetry".to_owned())]);
        assert_eq!(known(&groups(&["*"]), "Widget", &named).as_deref(), Some("widgetry"));
    }
}
