//! The resource that a kind is served as, such as `ingresses` for `Ingress`. Kubernetes' own are known; the name of any
//! other is guessed as `kubectl` guesses it, or asked for where a wrong guess would go unnoticed.

use std::collections::BTreeMap;

/// Kubernetes' own kinds by their group.
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

/// Names of resources that a person gave, by kind.
pub type Named = BTreeMap<String, String>;

/// The resource of a kind, guessed where it is not one of Kubernetes' own.
#[must_use]
pub fn plural(kind: &str) -> String {
    // All of Kubernetes' own follow the rule.
    let kind = kind.to_lowercase();
    if kind.is_empty() || kind == "endpoints" {
        return kind;
    }
    match kind.as_bytes() {
        [.., b's'] => kind + "es",
        [.., before, b'y'] if !b"aeiou".contains(before) => format!("{}ies", &kind[..kind.len() - 1]),
        _ => kind + "s",
    }
}

/// The resource of a kind that is known for sure: Kubernetes' own, or one that a person named.
#[must_use]
pub fn known(groups: &[String], kind: &str, named: &Named) -> Option<String> {
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
    fn kinds_have_the_resources_that_kubernetes_serves() {
        for (kind, wanted) in [
            ("Pod", "pods"),
            ("Ingress", "ingresses"),
            ("NetworkPolicy", "networkpolicies"),
            ("Gateway", "gateways"),
            ("Endpoints", "endpoints"),
            ("StorageClass", "storageclasses"),
            ("CSIStorageCapacity", "csistoragecapacities"),
            ("IPAddress", "ipaddresses"),
        ] {
            assert_eq!(plural(kind), wanted);
        }
    }

    #[test]
    fn only_what_is_sure_is_known() {
        let groups = |groups: &[&str]| groups.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let none = Named::new();
        assert_eq!(known(&groups(&["apps"]), "Deployment", &none).as_deref(), Some("deployments"));
        assert_eq!(known(&groups(&["*"]), "Deployment", &none).as_deref(), Some("deployments"));
        assert_eq!(known(&groups(&["example.com"]), "Deployment", &none), None);
        assert_eq!(known(&groups(&["*"]), "Widget", &none), None);
        let named = Named::from([("Widget".to_owned(), "widgetry".to_owned())]);
        assert_eq!(known(&groups(&["*"]), "Widget", &named).as_deref(), Some("widgetry"));
    }
}
