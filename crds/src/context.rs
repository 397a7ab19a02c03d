//! `hostCapabilities` and `contextAwareResources`: what a policy's programs may ask, as far as it can be told beforehand that
//! it makes no sense, or is more than a policy of a namespace may see.

use proviso_core::Capabilities;

use crate::validation::FieldError;
use crate::{ContextAwareResource, GROUP, PolicySpec, Program};

/// The most kinds that one program may read.
pub const MAX_RESOURCES: usize = 32;

/// Kinds of Kubernetes' own that belong to no namespace, by their groups.
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

/// Whether the objects of a kind belong to no namespace; none for kinds that Kubernetes does not have by itself.
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

/// What is wrong with what a policy's programs may ask. `namespace` is that of a `Policy`, `at` is where the spec stands in its
/// object.
#[must_use]
pub fn check(at: &str, namespace: Option<&str>, spec: &PolicySpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(error) = Capabilities::parse(&spec.host_capabilities) {
        errors.push(refuse(format!("{at}.hostCapabilities[{}]", error.index), error.to_string()));
    }
    resources(&format!("{at}.contextAwareResources"), namespace, &spec.context_aware_resources, &mut errors);
    if let Program::Group(group) = &spec.program {
        if !spec.context_aware_resources.is_empty() {
            let message = "is for a program that reads, and a group reads nothing itself: give each member its own";
            errors.push(refuse(format!("{at}.contextAwareResources"), message.to_owned()));
        }
        for (name, member) in &group.members {
            let at = format!("{at}.program.group.members.{name}.contextAwareResources");
            resources(&at, namespace, &member.context_aware_resources, &mut errors);
        }
    }
    errors
}

fn resources(at: &str, namespace: Option<&str>, resources: &[ContextAwareResource], errors: &mut Vec<FieldError>) {
    if resources.len() > MAX_RESOURCES {
        errors
            .push(refuse(at.to_owned(), format!("has {} kinds, at most {MAX_RESOURCES} are allowed", resources.len())));
    }
    for (index, resource) in resources.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let ContextAwareResource { api_version, kind } = resource;
        if !is_api_version(api_version) {
            let message = format!("{api_version:?} is no version such as v1, or group and version such as apps/v1");
            errors.push(refuse(format!("{at}.apiVersion"), message));
        } else if kind.is_empty() || !kind.chars().all(|c| c.is_ascii_alphanumeric()) {
            let message = format!("{kind:?} is no kind such as Pod");
            errors.push(refuse(format!("{at}.kind"), message));
        } else if let Some(why) = namespace.and_then(|_| beyond_a_namespace(api_version, kind)) {
            errors.push(refuse(at, format!("{kind} of {api_version}: {why}: use a ClusterPolicy")));
        }
    }
}

/// Why a policy of a namespace may not read a kind.
fn beyond_a_namespace(api_version: &str, kind: &str) -> Option<&'static str> {
    if api_version.split('/').next() == Some(GROUP) {
        return Some("policies of a namespace are not shown each other");
    }
    if (api_version, kind) == ("v1", "Secret") {
        return Some("Secrets are not shown to policies of a namespace, whose owners need not be allowed to read them");
    }
    (is_cluster_scoped(api_version, kind) == Some(true))
        .then_some("belongs to no namespace, and a Policy reads objects of its own namespace only")
}

fn is_api_version(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c))
    };
    let parts: Vec<&str> = text.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|part| is_part(part))
}

fn refuse(field: String, message: String) -> FieldError {
    FieldError { field, message }
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
    fn what_makes_no_sense_names_its_field() {
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
    fn members_have_their_own_and_a_group_has_none() {
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
