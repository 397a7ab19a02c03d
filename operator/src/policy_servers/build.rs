//! What there should be for a policy server. Pure.

mod pod;
mod quantity;

use kube::ResourceExt as _;
use proviso_crds::{GROUP, PolicyServer, Verification};
use serde_json::{Map, Value, json};

use super::names::{
    Place, cache_name, cluster_role_binding_name, name, replicas_name, signing_name, sources_name, tls_name,
};
use crate::objects::labels;
use proviso_crds::names::SERVER_LABEL;

/// `proviso.dev/v1alpha1`'s permissions that are not of one namespace; the chart makes it.
const CLUSTER_ROLE: &str = "proviso-policy-server";

/// The names that a policy server's certificate is for: of the Service, and of each replica.
pub(super) fn certificate_names(server: &str, namespace: &str) -> Vec<String> {
    let hosts = [format!("{}.{namespace}.svc", name(server)), format!("*.{}.{namespace}.svc", replicas_name(server))];
    hosts.iter().flat_map(|host| [host.clone(), format!("{host}.cluster.local")]).collect()
}

/// Name and labels of an object of the policy server.
///
/// It has no owner reference: with one, Kubernetes' garbage collector deletes it at once when somebody deletes the policy
/// server in the foreground, also while policies still need it. The operator deletes it: see [`parts`].
pub(super) fn metadata(server: &PolicyServer, name: &str) -> Value {
    let own = server.name_any();
    let mut labels = labels("policy-server", &own);
    labels.insert(SERVER_LABEL.to_owned(), own);
    json!({"name": name, "labels": labels})
}

/// Version, kind and name of everything that the operator may have made for the policy server of this name, whatever its spec
/// says. What others use comes after those.
pub(super) fn parts(server: &str) -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("apps/v1", "StatefulSet", name(server)),
        ("policy/v1", "PodDisruptionBudget", name(server)),
        ("v1", "Service", name(server)),
        ("v1", "Service", replicas_name(server)),
        ("v1", "PersistentVolumeClaim", cache_name(server)),
        ("v1", "ConfigMap", sources_name(server)),
        ("v1", "Secret", tls_name(server)),
        ("v1", "Secret", signing_name(server)),
        ("coordination.k8s.io/v1", "Lease", name(server)),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", cluster_role_binding_name(server)),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", name(server)),
        ("rbac.authorization.k8s.io/v1", "Role", name(server)),
        ("v1", "ServiceAccount", name(server)),
    ]
}

/// All of it but the Secrets and the Lease, each of which has a life of its own. Who needs another comes after it.
pub(super) fn objects(server: &PolicyServer, place: &Place) -> Vec<Value> {
    let mut objects = vec![service_account(server), role(server)];
    objects.extend(bindings(server, place));
    objects.push(sources(server));
    objects.extend(cache(server));
    objects.extend([headless_service(server), service(server), disruption_budget(server), stateful_set(server, place)]);
    for object in &mut objects {
        if object["kind"] != "ClusterRoleBinding" {
            object["metadata"]["namespace"] = json!(place.namespace);
        }
    }
    objects
}

fn service_account(server: &PolicyServer) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": metadata(server, &name(&server.name_any())),
        // Its pods ask for the token themselves.
        "automountServiceAccountToken": false,
    })
}

fn role(server: &PolicyServer) -> Value {
    let name = name(&server.name_any());
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": metadata(server, &name),
        "rules": [
            {"apiGroups": [GROUP], "resources": ["policyrevisions"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [GROUP], "resources": ["policyrevisions/status"], "verbs": ["patch"]},
            {
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name],
                "verbs": ["get", "patch"],
            },
        ],
    })
}

fn bindings(server: &PolicyServer, place: &Place) -> [Value; 2] {
    let name = name(&server.name_any());
    let account = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": place.namespace});
    // While replicas change from one to the other, both are at work.
    let mut subjects = vec![account(&name)];
    subjects.extend(server.spec.service_account_name.as_deref().filter(|it| *it != name).map(account));
    let binding = |kind: &str, name: &str, role_kind: &str, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": metadata(server, name),
            "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        })
    };
    [
        binding("RoleBinding", &name, "Role", &name),
        binding("ClusterRoleBinding", &cluster_role_binding_name(&server.name_any()), "ClusterRole", CLUSTER_ROLE),
    ]
}

fn sources(server: &PolicyServer) -> Value {
    let sources = &server.spec.sources;
    let mut file = json!({"insecureSources": sources.insecure, "sourceAuthorities": sources.authorities});
    if !sources.mirrors.is_empty() {
        file["mirrors"] = json!(sources.mirrors);
    }
    // JSON is YAML.
    let mut data = json!({"sources.yaml": format!("{file:#}\n")});
    if let Some(Verification { all_of, any_of, .. }) = &server.spec.verification {
        let mut file = json!({"apiVersion": "v1", "allOf": all_of});
        if let Some(any_of) = any_of {
            file["anyOf"] = json!(any_of);
        }
        data["verification.yaml"] = json!(format!("{file:#}\n"));
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": metadata(server, &sources_name(&server.name_any())),
        "data": data,
    })
}

/// The claim of a volume for the cache, if the operator is to make it.
fn cache(server: &PolicyServer) -> Option<Value> {
    let claim = server.spec.cache.as_ref()?.persistent_volume_claim.as_ref()?;
    let mut spec =
        json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": quantity::text(&claim.size)}}});
    if let Some(class) = &claim.storage_class_name {
        spec["storageClassName"] = json!(class);
    }
    Some(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": metadata(server, &cache_name(&server.name_any())),
        "spec": spec,
    }))
}

/// Gives every replica a name of its own.
fn headless_service(server: &PolicyServer) -> Value {
    let own = server.name_any();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(server, &replicas_name(&own)),
        "spec": {
            "clusterIP": "None",
            "selector": {SERVER_LABEL: own},
            // Also what is not Ready wants to be looked at.
            "publishNotReadyAddresses": true,
            "ports": [
                {"name": "https", "port": 8443, "targetPort": "https", "protocol": "TCP"},
                {"name": "admin", "port": 8081, "targetPort": "admin", "protocol": "TCP"},
            ],
        },
    })
}

/// What the API servers ask.
fn service(server: &PolicyServer) -> Value {
    let own = server.name_any();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(server, &name(&own)),
        "spec": {
            "type": "ClusterIP",
            "selector": {SERVER_LABEL: own},
            "ports": [{"name": "https", "port": 443, "targetPort": "https", "protocol": "TCP"}],
        },
    })
}

fn disruption_budget(server: &PolicyServer) -> Value {
    let own = server.name_any();
    let mut spec = Map::new();
    spec.insert("selector".to_owned(), json!({"matchLabels": {SERVER_LABEL: own}}));
    // A replica that is not Ready answers nobody: no drain has to wait for it.
    spec.insert("unhealthyPodEvictionPolicy".to_owned(), json!("AlwaysAllow"));
    match (&server.spec.min_available, &server.spec.max_unavailable) {
        (Some(least), _) => spec.insert("minAvailable".to_owned(), json!(least)),
        (None, most) => spec.insert("maxUnavailable".to_owned(), most.as_ref().map_or(json!(1), |most| json!(most))),
    };
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": metadata(server, &name(&own)),
        "spec": spec,
    })
}

/// Nothing of a policy is in it: an edit of one restarts nobody.
fn stateful_set(server: &PolicyServer, place: &Place) -> Value {
    let own = server.name_any();
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": metadata(server, &name(&own)),
        "spec": {
            "replicas": server.spec.replicas,
            "serviceName": replicas_name(&own),
            // A replica that does not come up keeps no other from it.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": {SERVER_LABEL: own}},
            "template": {
                "metadata": {"labels": metadata(server, "")["labels"]},
                "spec": pod::spec(server, place),
            },
        },
    })
}

#[cfg(test)]
mod tests;
