//! The desired objects of a policy server. Pure.

mod placement;
mod pod;
mod quantity;

use kube::ResourceExt as _;
use proviso_crds::{GROUP, PolicyServer, Tenants, Verification};
use serde_json::{Map, Value, json};

use super::names::{
    ServerDefaults, cache_name, callers_name, cluster_role_binding_name, name, replicas_name, signing_name,
    sources_name, tls_name,
};
use crate::objects::labels;
use proviso_crds::names::SERVER_LABEL;

/// The `ClusterRole` of policy servers, with their permissions outside the operator's namespace. The chart creates
/// it.
const CLUSTER_ROLE: &str = "proviso-policy-server";

/// Returns the DNS names of the certificate of a policy server: those of its Service and of each replica.
pub(super) fn certificate_names(server: &str, namespace: &str) -> Vec<String> {
    let hosts = [format!("{}.{namespace}.svc", name(server)), format!("*.{}.{namespace}.svc", replicas_name(server))];
    hosts.iter().flat_map(|host| [host.clone(), format!("{host}.cluster.local")]).collect()
}

/// Returns the metadata of an object of the policy server: its name and labels.
///
/// The object has no owner reference. With one, the garbage collector of Kubernetes would delete the object as soon
/// as the policy server is deleted in the foreground, even if policies still need it. The operator deletes the
/// object: see [`parts`].
pub(super) fn metadata(server: &PolicyServer, name: &str) -> Value {
    let own = server.name_any();
    let mut labels = labels("policy-server", &own);
    labels.insert(SERVER_LABEL.to_owned(), own);
    json!({"name": name, "labels": labels})
}

/// Returns version, kind and name of every object that the operator may have created for the policy server of this
/// name, for any spec. An object comes before the objects that it uses.
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
        ("v1", "Secret", callers_name(server)),
        ("coordination.k8s.io/v1", "Lease", name(server)),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", cluster_role_binding_name(server)),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", name(server)),
        ("rbac.authorization.k8s.io/v1", "Role", name(server)),
        ("v1", "ServiceAccount", name(server)),
    ]
}

/// Returns the desired objects, except the Secrets and the Lease, which other modules create. An object comes after
/// the objects that it uses.
pub(super) fn objects(server: &PolicyServer, defaults: &ServerDefaults) -> Vec<Value> {
    let mut objects = vec![service_account(server), role(server)];
    objects.extend(bindings(server, defaults));
    objects.push(sources(server));
    objects.extend(cache(server));
    objects.extend([
        headless_service(server, defaults),
        service(server),
        disruption_budget(server),
        stateful_set(server, defaults),
    ]);
    for object in &mut objects {
        if object["kind"] != "ClusterRoleBinding" {
            object["metadata"]["namespace"] = json!(defaults.namespace);
        }
    }
    objects
}

fn service_account(server: &PolicyServer) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": metadata(server, &name(&server.name_any())),
        // The pod spec requests the token.
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
            // A replica that lacks a live revision is not Ready while another Ready pod serves the revision.
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name],
                "verbs": ["get", "patch"],
            },
        ],
    })
}

fn bindings(server: &PolicyServer, defaults: &ServerDefaults) -> [Value; 2] {
    let name = name(&server.name_any());
    let account = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": defaults.namespace});
    // The binding has the default account too: while `serviceAccountName` changes, there are replicas with either account.
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
    if let Some(tenants) = tenant_limits(server) {
        data["tenants.json"] = json!(format!("{:#}\n", json!(tenants)));
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": metadata(server, &sources_name(&server.name_any())),
        "data": data,
    })
}

/// Returns the limits that replicas check; `None` if they are the defaults. The operator itself checks the others.
fn tenant_limits(server: &PolicyServer) -> Option<Tenants> {
    let tenants =
        Tenants { allowed_namespaces: None, namespaced_system_requests: false, ..server.spec.tenants.clone() };
    (tenants != Tenants::default()).then_some(tenants)
}

/// Returns the claim of the cache volume; `None` if the spec has no `persistentVolumeClaim`.
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

/// Returns the Service that gives every replica a DNS name.
fn headless_service(server: &PolicyServer, defaults: &ServerDefaults) -> Value {
    let own = server.name_any();
    let mut ports = vec![
        json!({"name": "https", "port": 8443, "targetPort": "https", "protocol": "TCP"}),
        json!({"name": "admin", "port": 8081, "targetPort": "admin", "protocol": "TCP"}),
    ];
    if defaults.authenticates_metrics {
        ports.push(json!({"name": "metrics", "port": pod::METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"}));
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(server, &replicas_name(&own)),
        "spec": {
            "clusterIP": "None",
            "selector": {SERVER_LABEL: own},
            // Replicas that are not Ready have to be reachable for inspection.
            "publishNotReadyAddresses": true,
            "ports": ports,
        },
    })
}

/// Returns the Service that the API servers call.
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
    // A replica that is not Ready answers no requests, so no drain has to wait for it.
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

/// Returns the `StatefulSet` of the replicas. Nothing in it depends on policies, so an edit of a policy restarts no
/// replica.
fn stateful_set(server: &PolicyServer, defaults: &ServerDefaults) -> Value {
    let own = server.name_any();
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": metadata(server, &name(&own)),
        "spec": {
            "replicas": server.spec.replicas,
            "serviceName": replicas_name(&own),
            // A replica that does not start must not block the others.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": {SERVER_LABEL: own}},
            "template": {
                "metadata": {"labels": metadata(server, "")["labels"]},
                "spec": pod::spec(server, defaults),
            },
        },
    })
}

#[cfg(test)]
mod tests;
