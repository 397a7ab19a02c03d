//! The safe defaults of a pod. They follow the Pod Security Standards' level "restricted", as far as a default can.

use serde_json::{Value, json};

/// The place of a pod spec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    Pod,
    /// The pod template of a workload.
    Template,
}

/// Fills in the defaults. Returns true if the pod changed.
pub fn fill_in(pod: &mut Value, origin: Origin) -> bool {
    let is_windows = pod.pointer("/os/name").is_some_and(|os| os == "windows");
    let mut changed = false;
    // The API server mounts the token into a Pod before webhooks see it, so this field has an effect only in a template.
    if origin == Origin::Template {
        changed |= fill(pod, "automountServiceAccountToken", || json!(false));
    }
    // The kubelet does not start a container with user 0 if runAsNonRoot is true.
    if !asks_for_root(pod) {
        changed |= fill_security(pod, "runAsNonRoot", || json!(true));
    }
    // Windows does not have these features, and the API server refuses the fields in pods for Windows.
    if !is_windows {
        changed |= fill_security(pod, "seccompProfile", || json!({ "type": "RuntimeDefault" }));
        for container in containers_mut(pod) {
            if !needs_escalation(container) {
                changed |= fill_security(container, "allowPrivilegeEscalation", || json!(false));
            }
        }
    }
    changed
}

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    LISTS.into_iter().filter_map(|list| pod.get(list)?.as_array()).flatten()
}

fn containers_mut(pod: &mut Value) -> impl Iterator<Item = &mut Value> {
    let fields = pod.as_object_mut().into_iter().flatten();
    fields.filter(|(name, _)| LISTS.contains(&name.as_str())).filter_map(|(_, list)| list.as_array_mut()).flatten()
}

fn asks_for_root(pod: &Value) -> bool {
    let is_root = |it: &Value| it.pointer("/securityContext/runAsUser").is_some_and(|user| user == 0);
    is_root(pod) || containers(pod).any(is_root)
}

/// Returns true for a container with settings that the API server refuses together with `allowPrivilegeEscalation: false`.
fn needs_escalation(container: &Value) -> bool {
    let is_privileged = container.pointer("/securityContext/privileged") == Some(&Value::Bool(true));
    let added = container.pointer("/securityContext/capabilities/add").and_then(Value::as_array);
    is_privileged || added.is_some_and(|added| added.iter().any(|it| it == "SYS_ADMIN" || it == "CAP_SYS_ADMIN"))
}

fn fill_security(it: &mut Value, field: &str, value: impl FnOnce() -> Value) -> bool {
    fill(it, "securityContext", || json!({}));
    it.get_mut("securityContext").is_some_and(|context| fill(context, field, value))
}

/// Sets a field that is absent or null. Returns true if it was set.
fn fill(object: &mut Value, field: &str, value: impl FnOnce() -> Value) -> bool {
    let Some(fields) = object.as_object_mut() else {
        return false;
    };
    let is_missing = fields.get(field).is_none_or(Value::is_null);
    if is_missing {
        fields.insert(field.to_owned(), value());
    }
    is_missing
}
