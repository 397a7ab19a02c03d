//! Checks of `hostCapabilities` and `contextAwareResources`, the host capabilities and the kinds that a policy's programs
//! may use. They refuse values that are malformed, and kinds that a `Policy`, which is limited to its namespace, may not
//! read.

use proviso_core::Capabilities;

use crate::validation::FieldError;
use crate::{ContextAwareResource, GROUP, PolicySpec, Program};

/// The maximum number of kinds that one program may read.
pub const MAX_RESOURCES: usize = 32;

/// The cluster-scoped kinds of Kubernetes itself, by API group.
const CLUSTER_SCOPED: [(&str, &[&str]); 12] = [
    ("", &["ComponentStatus", "Namespace", "Node", "PersistentVolume"]),
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
    ("certificates.k8s.io", &["CertificateSigningRequest", "ClusterTrustBundle"]),
    ("flowcontrol.apiserver.k8s.io", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("networking.k8s.io", &["IPAddress", "IngressClass", "ServiceCIDR"]),
    ("node.k8s.io", &["RuntimeClass"]),
    ("rbac.authorization.k8s.io", &["ClusterRole", "ClusterRoleBinding"]),
    ("resource.k8s.io", &["DeviceClass", "ResourceSlice"]),
    ("scheduling.k8s.io", &["PriorityClass"]),
    ("storage.k8s.io", &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"]),
];

/// Returns true if the kind is cluster-scoped, and false if it is namespaced. `None` means that the scope is unknown: the
/// kind is neither Kubernetes' own nor Proviso's.
#[must_use]
pub fn is_cluster_scoped(api_version: &str, kind: &str) -> Option<bool> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    if group == GROUP {
        return Some(kind.starts_with("Cluster") || kind == "PolicyServer");
    }
    let is_kubernetes_own = !group.contains('.') || CLUSTER_SCOPED.iter().any(|(own, _)| *own == group);
    let is_listed = CLUSTER_SCOPED.iter().any(|(own, kinds)| *own == group && kinds.contains(&kind));
    is_kubernetes_own.then_some(is_listed)
}

/// Returns the errors in the host capabilities and context-aware resources of `spec`. `at` is the path of `spec` in its
/// object, such as `spec.policy`. `namespace` is the namespace of a `Policy`; `None` means that the policy is a
/// `ClusterPolicy`.
#[must_use]
pub fn check(at: &str, namespace: Option<&str>, spec: &PolicySpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(error) = Capabilities::parse(&spec.host_capabilities) {
        errors.push(FieldError::new(format!("{at}.hostCapabilities[{}]", error.index), error.to_string()));
    }
    check_resources(&format!("{at}.contextAwareResources"), namespace, &spec.context_aware_resources, &mut errors);
    if let Program::Group(group) = &spec.program {
        if !spec.context_aware_resources.is_empty() {
            let message = "must be empty for a group: set contextAwareResources on each member that reads objects";
            errors.push(FieldError::new(format!("{at}.contextAwareResources"), message));
        }
        for (name, member) in &group.members {
            let at = format!("{at}.program.group.members.{name}.contextAwareResources");
            check_resources(&at, namespace, &member.context_aware_resources, &mut errors);
        }
    }
    errors
}

fn check_resources(
    at: &str,
    namespace: Option<&str>,
    resources: &[ContextAwareResource],
    errors: &mut Vec<FieldError>,
) {
    if resources.len() > MAX_RESOURCES {
        errors.push(FieldError::new(at, format!("has {} kinds, at most {MAX_RESOURCES} are allowed", resources.len())));
    }
    for (index, resource) in resources.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let ContextAwareResource { api_version, kind } = resource;
        if !is_api_version(api_version) {
            let message = format!("{api_version:?} is not an API version such as v1 or apps/v1");
            errors.push(FieldError::new(format!("{at}.apiVersion"), message));
        } else if kind.is_empty() || !kind.chars().all(|c| c.is_ascii_alphanumeric()) {
            let message = format!("{kind:?} is not a kind such as Pod");
            errors.push(FieldError::new(format!("{at}.kind"), message));
        } else if let Some(why) = namespace.and_then(|_| refusal_for_policy(api_version, kind)) {
            errors.push(FieldError::new(at, format!("{kind} of {api_version}: {why}: use a ClusterPolicy")));
        }
    }
}

/// Returns the reason why a `Policy`, in contrast to a `ClusterPolicy`, may not read a kind. `None` means that it may.
fn refusal_for_policy(api_version: &str, kind: &str) -> Option<&'static str> {
    if api_version.split('/').next() == Some(GROUP) {
        return Some("a Policy may not read objects of proviso.dev");
    }
    if (api_version, kind) == ("v1", "Secret") {
        return Some("a Policy may not read Secrets, because its author may lack the permission to read them");
    }
    (is_cluster_scoped(api_version, kind) == Some(true))
        .then_some("the kind is cluster-scoped, and a Policy reads only objects of its own namespace")
}

fn is_api_version(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c))
    };
    let parts: Vec<&str> = text.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|part| is_part(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(namespace: Option<&str>, more: &Value) -> Vec<String> {
        let mut spec = json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}});
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        let spec = serde_json::from_value(spec).unwrap();
        check("spec", namespace, &spec).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn an_invalid_capability_or_resource_is_refused_by_its_field() {
        let reads = |api_version: &str, kind: &str| json!({"contextAwareResources": [{"apiVersion": api_version, "kind": kind}]});
        let at = "spec.contextAwareResources[0]";
        for (namespace, spec, wanted) in [
            (None, json!({"hostCapabilities": ["oci/*", "kubernetes/can_i"]}), None),
            (None, json!({"hostCapabilities": ["*", "oci/v3/*"]}), Some("spec.hostCapabilities[1]".to_owned())),
            (None, reads("v1", "Secret"), None),
            (None, reads("rbac.authorization.k8s.io/v1", "ClusterRole"), None),
            (None, reads("proviso.dev/v1alpha1", "Policy"), None),
            (Some("a"), reads("apps/v1", "Deployment"), None),
            (Some("a"), reads("example.com/v1", "Thing"), None),
            (Some("a"), reads("v1", "Secret"), Some(at.to_owned())),
            (Some("a"), reads("v1", "Namespace"), Some(at.to_owned())),
            (Some("a"), reads("rbac.authorization.k8s.io/v1", "ClusterRole"), Some(at.to_owned())),
            (Some("a"), reads("proviso.dev/v1alpha1", "Policy"), Some(at.to_owned())),
            (None, reads("", "Pod"), Some(format!("{at}.apiVersion"))),
            (None, reads("a/b/c", "Pod"), Some(format!("{at}.apiVersion"))),
            (None, reads("v1", ""), Some(format!("{at}.kind"))),
            (None, reads("v1", "pods/log"), Some(format!("{at}.kind"))),
        ] {
            assert_eq!(fields(namespace, &spec), wanted.into_iter().collect::<Vec<_>>(), "{namespace:?} {spec}");
        }
    }

    #[test]
    fn members_have_context_aware_resources_and_their_group_has_none() {
        let secret = json!([{"apiVersion": "v1", "kind": "Secret"}]);
        let member = json!({"program": {"cel": {"validations": []}}, "contextAwareResources": secret});
        let group = json!({"group": {"members": {"m": member}, "expression": "m()", "message": "no"}});
        assert_eq!(fields(None, &json!({"program": group})), Vec::<String>::new());
        let wanted = ["spec.program.group.members.m.contextAwareResources[0]"];
        assert_eq!(fields(Some("a"), &json!({"program": group})), wanted);
        let both = json!({"program": group, "contextAwareResources": secret});
        assert_eq!(fields(None, &both), ["spec.contextAwareResources"]);
    }
}
