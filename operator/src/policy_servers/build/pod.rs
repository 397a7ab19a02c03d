//! The pods of a policy server.

use kube::ResourceExt as _;
use proviso_crds::{Cache, ConfigMapKeyRef, EmptyDir, PolicyServer, PolicyServerSpec};
use serde_json::{Value, json};

use super::super::names::{
    CALLER_TOKENS, ServerDefaults, cache_name, callers_name, name, signing_name, sources_name, tls_name,
};
use super::placement;
use super::quantity::text;

/// The size limit of the default cache volume: a tenant's modules must not fill the disk of a node.
const DEFAULT_CACHE_SIZE: &str = "2Gi";
/// The user `nonroot` of distroless images.
const USER: u32 = 65_532;
/// The time from SIGTERM to SIGKILL, in seconds: the server answers for 15 s, drains for at most 35 s, and ends its
/// previews within 5 s.
const GRACE_SECONDS: u32 = 60;
/// The port of `/metrics` with TLS and authentication.
pub(super) const METRICS_PORT: u16 = 8082;
/// The file mode of keys: readable by owner and group, 0440.
const SECRET_MODE: u32 = 0o440;

pub(super) fn spec(server: &PolicyServer, defaults: &ServerDefaults) -> Value {
    let spec = &server.spec;
    let own = name(&server.name_any());
    let mut pod = json!({
        "serviceAccountName": spec.service_account_name.as_ref().unwrap_or(&own),
        "automountServiceAccountToken": true,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            // Does not walk through the whole cache at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(server, defaults)],
        "volumes": volumes(server),
    });
    for (field, value) in [
        ("imagePullSecrets", json!(spec.image_pull_secrets)),
        ("affinity", json!(spec.affinity)),
        ("tolerations", json!(placement::tolerations(server))),
        ("topologySpreadConstraints", json!(placement::topology_spread_constraints(server))),
        ("nodeSelector", json!(placement::node_selector(server))),
        ("priorityClassName", json!(spec.priority_class_name)),
    ] {
        set_unless_empty(&mut pod, field, value);
    }
    pod
}

/// Sets a field, unless the value is empty.
fn set_unless_empty(object: &mut Value, field: &str, value: Value) {
    let is_empty = match &value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if !is_empty {
        object[field] = value;
    }
}

fn container(server: &PolicyServer, defaults: &ServerDefaults) -> Value {
    let spec = &server.spec;
    let probe = |path: &str, period: u32, failures: u32| {
        json!({
            "httpGet": {"path": path, "port": "admin"},
            "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures,
        })
    };
    let field_ref = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut env = vec![field_ref("POD_NAME", "metadata.name"), field_ref("POD_UID", "metadata.uid")];
    env.extend(spec.env.iter().map(|variable| json!(variable)));
    let mut container = json!({
        "name": "policy-server",
        "image": spec.image.as_ref().unwrap_or(&defaults.image),
        "args": arguments(server, defaults),
        "env": env,
        "ports": [
            {"name": "https", "containerPort": 8443, "protocol": "TCP"},
            {"name": "admin", "containerPort": 8081, "protocol": "TCP"},
        ],
        "startupProbe": probe("/livez", 1, 60),
        "livenessProbe": probe("/livez", 10, 3),
        "readinessProbe": probe("/readyz", 2, 2),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tls", "mountPath": "/etc/proviso/tls", "readOnly": true},
            {"name": "signing", "mountPath": "/etc/proviso/signing", "readOnly": true},
            {"name": "callers", "mountPath": "/etc/proviso/callers", "readOnly": true},
            {"name": "sources", "mountPath": "/etc/proviso/sources", "readOnly": true},
            {"name": "pull-secrets", "mountPath": "/etc/proviso/pull-secrets", "readOnly": true},
            {"name": "cache", "mountPath": "/var/cache/proviso"},
        ],
    });
    if let Some(mounts) = container["volumeMounts"].as_array_mut() {
        if trusted_root(server).is_some() {
            mounts.push(json!({"name": "trusted-root", "mountPath": "/etc/proviso/trust", "readOnly": true}));
        }
        if spec.client_ca.is_some() {
            mounts.push(json!({"name": "client-ca", "mountPath": "/etc/proviso/client-ca", "readOnly": true}));
        }
    }
    if defaults.authenticates_metrics
        && let Some(ports) = container["ports"].as_array_mut()
    {
        ports.push(json!({"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}));
    }
    set_unless_empty(&mut container, "imagePullPolicy", json!(spec.image_pull_policy));
    set_unless_empty(&mut container, "resources", json!(spec.resources));
    container
}

/// Returns the trusted root for keyless signing, if the spec names one.
fn trusted_root(server: &PolicyServer) -> Option<&ConfigMapKeyRef> {
    server.spec.verification.as_ref()?.trusted_root.as_ref()
}

fn arguments(server: &PolicyServer, defaults: &ServerDefaults) -> Vec<String> {
    let own = server.name_any();
    let mut arguments: Vec<String> = [
        ("--policy-server", own.as_str()),
        ("--namespace", &defaults.namespace),
        ("--pod-name", "$(POD_NAME)"),
        ("--pod-uid", "$(POD_UID)"),
        ("--listen", "0.0.0.0:8443"),
        ("--admin-listen", "0.0.0.0:8081"),
        ("--tls-cert", "/etc/proviso/tls/tls.crt"),
        ("--tls-key", "/etc/proviso/tls/tls.key"),
        ("--caller-tokens", &format!("/etc/proviso/callers/{CALLER_TOKENS}")),
        ("--cache-dir", "/var/cache/proviso"),
        ("--signing-key", "/etc/proviso/signing/signing.key"),
        ("--sources", "/etc/proviso/sources/sources.yaml"),
        ("--pull-secrets", "/etc/proviso/pull-secrets"),
        ("--log-format", "json"),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value.to_owned()])
    .collect();
    let PolicyServerSpec { evaluation, preview, log_level, .. } = &server.spec;
    let level = log_level.map(|level| json!(level).as_str().unwrap_or("info").to_owned());
    let verification = server.spec.verification.as_ref().map(|_| "/etc/proviso/sources/verification.yaml".to_owned());
    let tenants = super::tenant_limits(server).map(|_| "/etc/proviso/sources/tenants.json".to_owned());
    let system_requests = server.spec.tenants.namespaced_system_requests.then(|| "true".to_owned());
    for (name, value) in [
        ("--tenants", tenants),
        ("--namespaced-system-requests", system_requests),
        ("--metrics-listen", defaults.authenticates_metrics.then(|| format!("0.0.0.0:{METRICS_PORT}"))),
        ("--client-ca", server.spec.client_ca.as_ref().map(|_| "/etc/proviso/client-ca/ca.crt".to_owned())),
        ("--verification", verification),
        ("--trusted-root", trusted_root(server).map(|_| "/etc/proviso/trust/trusted_root.json".to_owned())),
        ("--evaluation-timeout", evaluation.timeout_seconds.map(|seconds| format!("{seconds}s"))),
        ("--namespaced-timeout", evaluation.namespaced_timeout_seconds.map(|seconds| format!("{seconds}s"))),
        ("--memory-limit", evaluation.memory_limit_mib.map(|limit| limit.to_string())),
        ("--concurrency", evaluation.concurrency.map(|count| count.to_string())),
        ("--preview-queue", preview.queue_capacity.map(|count| count.to_string())),
        ("--log", level),
    ] {
        arguments.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    }
    arguments
}

fn volumes(server: &PolicyServer) -> Value {
    let own = server.name_any();
    let spec = &server.spec;
    let pull_secrets = spec.image_pull_secrets.iter().map(|secret| {
        let file = format!("{}/.dockerconfigjson", secret.name);
        // A missing Secret does not keep a replica from starting: the modules that need it report the error.
        json!({"secret": {
            "name": secret.name, "optional": true, "items": [{"key": ".dockerconfigjson", "path": file}],
        }})
    });
    let pull_secrets: Vec<_> = pull_secrets.collect();
    let mut cache = match &spec.cache {
        Some(Cache { persistent_volume_claim: Some(_), .. }) => {
            json!({"persistentVolumeClaim": {"claimName": cache_name(&own)}})
        }
        Some(Cache { existing_claim: Some(claim), .. }) => json!({"persistentVolumeClaim": {"claimName": claim}}),
        Some(Cache { empty_dir: Some(EmptyDir { size_limit: Some(limit) }), .. }) => {
            json!({"emptyDir": {"sizeLimit": text(limit)}})
        }
        _ => json!({"emptyDir": {"sizeLimit": DEFAULT_CACHE_SIZE}}),
    };
    cache["name"] = json!("cache");
    let mut volumes = json!([
        {"name": "tls", "secret": {"secretName": tls_name(&own), "defaultMode": SECRET_MODE}},
        {"name": "signing", "secret": {"secretName": signing_name(&own), "defaultMode": SECRET_MODE}},
        {"name": "callers", "secret": {"secretName": callers_name(&own), "defaultMode": SECRET_MODE}},
        {"name": "sources", "configMap": {"name": sources_name(&own)}},
        {"name": "pull-secrets", "projected": {"sources": pull_secrets, "defaultMode": SECRET_MODE}},
        cache,
    ]);
    if let (Some(ConfigMapKeyRef { name, key }), Some(volumes)) = (&spec.client_ca, volumes.as_array_mut()) {
        let items = json!([{"key": key, "path": "ca.crt"}]);
        // Without it, a replica could not tell API servers from others, so it must not start.
        volumes.push(json!({"name": "client-ca", "configMap": {"name": name, "items": items}}));
    }
    if let (Some(ConfigMapKeyRef { name, key }), Some(volumes)) = (trusted_root(server), volumes.as_array_mut()) {
        let items = json!([{"key": key, "path": "trusted_root.json"}]);
        // A missing ConfigMap does not keep a replica from starting: the modules that need it report the error.
        volumes.push(json!({"name": "trusted-root", "configMap": {"name": name, "items": items, "optional": true}}));
    }
    volumes
}
