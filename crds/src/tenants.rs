//! The fields of a PolicyServer that say who may use it, and what namespaced policies may do on it, with the checks of a policy
//! against them (docs/adr/0021). The operator checks a policy at admission and before each new generation, and each replica checks it
//! when it prepares a revision.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use proviso_core::Capabilities;
use proviso_core::capabilities::KNOWN;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::validation::FieldError;
use crate::{PolicySpec, Program};

/// The name of the PolicyServer that every namespace may use by default.
pub const DEFAULT_SERVER: &str = "default";
/// The capability that `namespacedCapabilities` must grant for `contextAwareResources`.
pub const READING: &str = "kubernetes/list_resources_by_namespace";

/// The users of a PolicyServer, and the limits of namespaced policies on it. The default permits only pure evaluation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenants {
    /// The namespaces whose Policies may use this PolicyServer. ClusterPolicies may always use it. Default: all namespaces for the
    /// PolicyServer `default`, and no namespace for any other, so that the author of a Policy cannot choose a server with weaker
    /// settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// The host capabilities that Policies may be granted, as names or patterns such as `oci/*`: at most 20. A Policy that reads
    /// objects (`contextAwareResources`) needs `kubernetes/list_resources_by_namespace`. Default: no capabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "set"))]
    pub namespaced_capabilities: Vec<String>,
    /// The names of those `imagePullSecrets` whose credentials are used for the modules of Policies, and for their `oci`
    /// capabilities: at most 100. Default: no Secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "set"))]
    pub namespaced_pull_secrets: Vec<String>,
    /// The registries and web servers that the modules of Policies may come from, as `host`, `host:port` or `host/path`: at most 100.
    /// A listed server may have a loopback or private address. Default: every server with a public address, and the servers in
    /// `sources`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(regex(pattern = r"^[^/\s]+(/[^\s]+)?$")), extend("x-kubernetes-list-type" = "set"))]
    pub namespaced_registries: Vec<String>,
    /// True if Policies may change objects (`mutating: true`). A mutating Policy changes the objects of everybody who writes to its
    /// namespace, also of cluster administrators. Default: false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub namespaced_mutation: bool,
    /// True if Policies are asked about requests of the group system:masters, of nodes, and of ServiceAccounts in kube-system. Default:
    /// false. Policies are always asked about the Pods, ReplicaSets, Jobs, ControllerRevisions and PersistentVolumeClaims that
    /// the controllers of Kubernetes create for workloads.
    #[serde(default, skip_serializing_if = "is_false")]
    pub namespaced_system_requests: bool,
}

/// A selection of namespaces: those with one of the names, and those that the selector selects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// The names of namespaces: at most 1000. Default: no names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), extend("x-kubernetes-list-type" = "set"))]
    pub match_names: Vec<String>,
    /// Selects namespaces by their labels. `{}` selects all namespaces. Default: no namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Tenants {
    /// Returns true if the labels of the namespace matter for [`Self::allows_namespace`].
    #[must_use]
    pub fn needs_labels(&self, namespace: &str) -> bool {
        self.allowed_namespaces.as_ref().is_some_and(|allowed| {
            allowed.selector.is_some() && !allowed.match_names.iter().any(|name| name == namespace)
        })
    }

    /// Returns true if the Policies of a namespace with these labels may use the PolicyServer with the name `server`.
    #[must_use]
    pub fn allows_namespace(&self, server: &str, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let Some(AllowedNamespaces { match_names, selector }) = &self.allowed_namespaces else {
            return server == DEFAULT_SERVER;
        };
        let is_selected = |selector: &LabelSelector| {
            // A selector that cannot be read selects nothing.
            Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
        };
        match_names.iter().any(|name| name == namespace) || selector.as_ref().is_some_and(is_selected)
    }

    /// Returns the capabilities that Policies may be granted. Patterns without a match grant nothing.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let known = |pattern: &&String| Capabilities::parse(std::slice::from_ref(*pattern)).is_ok();
        let patterns: Vec<String> = self.namespaced_capabilities.iter().filter(known).cloned().collect();
        Capabilities::parse(&patterns).unwrap_or_default()
    }

    /// Returns true if Policies may read objects (`contextAwareResources`).
    #[must_use]
    pub fn may_read(&self) -> bool {
        allows(&self.capabilities(), READING)
    }

    /// Returns the uses in the spec of a Policy that the PolicyServer with the name `server` does not permit. `at` is the path of the
    /// spec in its object.
    #[must_use]
    pub fn check(&self, at: &str, server: &str, spec: &PolicySpec) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let ask = |field: &str| {
            format!("use a ClusterPolicy, or ask an administrator to change {field} of PolicyServer {server}")
        };
        if spec.admission.as_ref().is_some_and(|admission| admission.mutating) && !self.namespaced_mutation {
            let message = format!(
                "is true, but Policies on PolicyServer {server} may not change objects: {}",
                ask("namespacedMutation")
            );
            errors.push(FieldError::new(format!("{at}.admission.mutating"), message));
        }
        if let Some(name) = self.missing_capability(&spec.host_capabilities) {
            let message = format!(
                "grants {name}, which PolicyServer {server} does not permit for Policies: {}",
                ask("namespacedCapabilities")
            );
            errors.push(FieldError::new(format!("{at}.hostCapabilities"), message));
        }
        let mut reading = vec![(format!("{at}.contextAwareResources"), !spec.context_aware_resources.is_empty())];
        if let Program::Group(group) = &spec.program {
            let members = group.members.iter().map(|(name, member)| {
                let field = format!("{at}.program.group.members.{name}.contextAwareResources");
                (field, !member.context_aware_resources.is_empty())
            });
            reading.extend(members);
        }
        for (field, _) in reading.into_iter().filter(|(_, reads)| *reads && !self.may_read()) {
            let message = format!(
                "has kinds, but Policies on PolicyServer {server} may not read objects ({READING}): {}",
                ask("namespacedCapabilities")
            );
            errors.push(FieldError::new(field, message));
        }
        self.check_program(&format!("{at}.program"), &spec.program, &ask, &mut errors);
        errors
    }

    fn check_program(&self, at: &str, program: &Program, ask: &impl Fn(&str) -> String, errors: &mut Vec<FieldError>) {
        match program {
            Program::Wasm(wasm) => {
                for secret in
                    wasm.image_pull_secrets.iter().filter(|it| !self.namespaced_pull_secrets.contains(&it.name))
                {
                    let message =
                        format!("has {}, which Policies may not use: {}", secret.name, ask("namespacedPullSecrets"));
                    errors.push(FieldError::new(format!("{at}.wasm.imagePullSecrets"), message));
                }
                if !self.allows_module(&wasm.module) {
                    let message = format!(
                        "comes from a server that is not permitted for Policies: {}",
                        ask("namespacedRegistries")
                    );
                    errors.push(FieldError::new(format!("{at}.wasm.module"), message));
                }
            }
            Program::Group(group) => {
                for (name, member) in &group.members {
                    self.check_program(&format!("{at}.group.members.{name}.program"), &member.program, ask, errors);
                }
            }
            Program::None | Program::Rego(_) | Program::Cel(_) | Program::Requests(_) => {}
        }
    }

    /// Returns a capability that these patterns grant, but that Policies may not be granted.
    fn missing_capability(&self, patterns: &[String]) -> Option<&'static str> {
        // Invalid patterns are another error.
        let (wanted, permitted) = (Capabilities::parse(patterns).unwrap_or_default(), self.capabilities());
        KNOWN.into_iter().find(|name| allows(&wanted, name) && !allows(&permitted, name))
    }

    /// Returns true if the modules of Policies may come from the server in this reference.
    #[must_use]
    pub fn allows_module(&self, reference: &str) -> bool {
        let place = reference.split_once("://").map_or(reference, |(_, place)| place);
        self.namespaced_registries.is_empty() || self.namespaced_registries.iter().any(|pattern| is_at(place, pattern))
    }
}

fn allows(capabilities: &Capabilities, name: &str) -> bool {
    name.split_once('/').is_some_and(|(namespace, operation)| capabilities.allow(namespace, operation))
}

/// Returns true if a place `host/path` is at a server, or below a path of a server.
fn is_at(place: &str, pattern: &str) -> bool {
    let split = |text: &str| {
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        let host = host.to_ascii_lowercase();
        (host.strip_suffix(":443").map(ToOwned::to_owned).unwrap_or(host), path.to_owned())
    };
    let ((host, path), (wanted_host, wanted_path)) = (split(place), split(pattern));
    let wanted_path = wanted_path.trim_end_matches('/');
    // A URL with `..` or an encoded character could leave the path.
    let is_plain = !path.contains("..") && !path.contains('%') && !path.contains('\\');
    let below = path.strip_prefix(wanted_path);
    host == wanted_host
        && (wanted_path.is_empty()
            || (is_plain && below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', '@', '?']))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tenants(fields: Value) -> Tenants {
        serde_json::from_value(fields).unwrap()
    }

    fn spec(fields: &Value) -> PolicySpec {
        let mut spec = json!({
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
            ]},
        });
        for (key, value) in fields.as_object().unwrap() {
            match (spec[key].as_object_mut(), value.as_object()) {
                (Some(known), Some(new)) if key == "admission" => known.extend(new.clone()),
                _ => spec[key] = value.clone(),
            }
        }
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn only_the_default_server_allows_every_namespace_by_default() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let allows = |fields: Value, server: &str| tenants(fields).allows_namespace(server, "ns", &labels);
        assert!(allows(json!({}), "default") && !allows(json!({}), "other"));
        for (allowed, expected) in [
            (json!({}), false),
            (json!({"matchNames": ["ns"]}), true),
            (json!({"matchNames": ["n", "ns-2"]}), false),
            (json!({"selector": {}}), true),
            (json!({"selector": {"matchLabels": {"team": "a"}}}), true),
            (json!({"selector": {"matchLabels": {"team": "b"}}}), false),
            (json!({"matchNames": ["ns"], "selector": {"matchLabels": {"team": "b"}}}), true),
            (json!({"selector": {"matchExpressions": [{"key": "team", "operator": "Nonsense"}]}}), false),
        ] {
            for server in ["default", "other"] {
                assert_eq!(allows(json!({"allowedNamespaces": allowed}), server), expected, "{server} {allowed}");
            }
        }
    }

    #[test]
    fn a_policy_may_use_only_what_the_server_permits() {
        let wasm = |module: &str| json!({"program": {"wasm": {"module": module, "imagePullSecrets": [{"name": "s"}]}}});
        let group = json!({"program": {"group": {"expression": "a()", "message": "no", "members": {"a": {
            "program": {"wasm": {"module": "https://internal/a.wasm"}},
            "contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}],
        }}}}});
        for (permitted, wanted, fields) in [
            (json!({}), json!({}), vec![]),
            (json!({}), json!({"admission": {"mutating": true}}), vec!["spec.admission.mutating"]),
            (json!({"namespacedMutation": true}), json!({"admission": {"mutating": true}}), vec![]),
            (json!({}), json!({"hostCapabilities": ["oci/v1/verify"]}), vec!["spec.hostCapabilities"]),
            (json!({"namespacedCapabilities": ["oci/*"]}), json!({"hostCapabilities": ["oci/v1/verify"]}), vec![]),
            (
                json!({"namespacedCapabilities": ["oci/*"]}),
                json!({"hostCapabilities": ["*"]}),
                vec!["spec.hostCapabilities"],
            ),
            (
                json!({}),
                json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}]}),
                vec!["spec.contextAwareResources"],
            ),
            (
                json!({"namespacedCapabilities": ["kubernetes/*"]}),
                json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}]}),
                vec![],
            ),
            (json!({}), wasm("registry://ghcr.io/a/b:v1"), vec!["spec.program.wasm.imagePullSecrets"]),
            (json!({"namespacedPullSecrets": ["s"]}), wasm("registry://ghcr.io/a/b:v1"), vec![]),
            (
                json!({"namespacedPullSecrets": ["s"], "namespacedRegistries": ["ghcr.io/c"]}),
                wasm("registry://ghcr.io/a/b:v1"),
                vec!["spec.program.wasm.module"],
            ),
            (
                json!({"namespacedRegistries": ["ghcr.io"]}),
                group,
                vec![
                    "spec.program.group.members.a.contextAwareResources",
                    "spec.program.group.members.a.program.wasm.module",
                ],
            ),
        ] {
            let errors = tenants(permitted.clone()).check("spec", "shared", &spec(&wanted));
            let found: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(found, fields, "{permitted} {wanted}");
            let has_remedy = |error: &FieldError| error.message.contains("of PolicyServer shared");
            assert!(errors.iter().all(has_remedy), "{errors:?}");
        }
    }

    #[test]
    fn a_registry_pattern_is_a_server_or_a_path_of_it() {
        let registries =
            tenants(json!({"namespacedRegistries": ["ghcr.io/team", "registry.local:5000", "example.com:443/a/"]}));
        for reference in [
            "registry://ghcr.io/team/a:v1",
            "registry://GHCR.io/team/a:v1",
            "registry://ghcr.io/team:v1",
            "registry://registry.local:5000/a",
            "https://example.com/a/b.wasm",
        ] {
            assert!(registries.allows_module(reference), "{reference}");
        }
        for reference in [
            "registry://ghcr.io/team-2/a:v1",
            "registry://ghcr.io/a:v1",
            "registry://registry.local/a",
            "registry://ghcr.io.example.com/team/a",
            "https://example.com/a/../b.wasm",
            "https://example.com/a/%2e%2e/b.wasm",
            "https://example.com/b.wasm",
        ] {
            assert!(!registries.allows_module(reference), "{reference}");
        }
        assert!(tenants(json!({})).allows_module("registry://ghcr.io/a:v1"));
    }
}
