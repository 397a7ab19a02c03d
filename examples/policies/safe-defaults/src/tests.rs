use serde_json::{Value, json};

use super::*;

fn ask(kind: &str, operation: &str, object: &Value, settings: Value) -> Response {
    let request = json!({ "kind": { "kind": kind }, "operation": operation, "object": object });
    let request = serde_json::from_value(request).expect("a request");
    SafeDefaults::validate(request, &serde_json::from_value(settings).expect("settings"))
}

/// Returns the pod spec after the mutation; `None` if the policy does not change it.
fn filled(pod: &Value) -> Option<Value> {
    ask("Pod", "CREATE", &json!({ "metadata": {}, "spec": pod }), json!({})).mutated_object.map(|it| it["spec"].clone())
}

fn safe_pod() -> Value {
    json!({
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{ "name": "web", "securityContext": { "allowPrivilegeEscalation": false } }],
    })
}

#[test]
fn a_bare_pod_gets_every_default() {
    assert_eq!(filled(&json!({ "containers": [{ "name": "web" }] })), Some(safe_pod()));
    assert_eq!(filled(&json!({ "securityContext": null, "containers": [{ "name": "web" }] })), Some(safe_pod()));
}

#[test]
fn a_pod_with_all_settings_is_not_changed() {
    assert_eq!(filled(&safe_pod()), None);
}

#[test]
fn a_setting_that_is_present_is_never_changed() {
    let pod = json!({
        "securityContext": { "runAsNonRoot": false, "seccompProfile": { "type": "Unconfined" } },
        "containers": [{ "name": "web", "securityContext": { "allowPrivilegeEscalation": true } }],
    });
    assert_eq!(filled(&pod), None);
}

#[test]
fn a_pod_with_user_0_does_not_get_run_as_non_root() {
    for pod in [
        json!({ "securityContext": { "runAsUser": 0 }, "containers": [{ "name": "web" }] }),
        json!({ "containers": [{ "name": "web", "securityContext": { "runAsUser": 0 } }] }),
    ] {
        let filled = filled(&pod).expect("other defaults");
        assert_eq!(filled["securityContext"].get("runAsNonRoot"), None, "{filled}");
        assert_eq!(filled["containers"][0]["securityContext"]["allowPrivilegeEscalation"], false);
    }
}

#[test]
fn a_privileged_container_keeps_privilege_escalation() {
    for context in [json!({ "privileged": true }), json!({ "capabilities": { "add": ["SYS_ADMIN"] } })] {
        let pod = json!({ "containers": [{ "name": "web", "securityContext": context }] });
        let filled = filled(&pod).expect("other defaults");
        assert_eq!(filled["containers"][0]["securityContext"].get("allowPrivilegeEscalation"), None);
    }
}

#[test]
fn windows_pods_get_only_fields_that_windows_supports() {
    let pod = json!({ "os": { "name": "windows" }, "containers": [{ "name": "web" }] });
    let expected = json!({
        "os": { "name": "windows" }, "securityContext": { "runAsNonRoot": true }, "containers": [{ "name": "web" }],
    });
    assert_eq!(filled(&pod), Some(expected));
}

#[test]
fn pod_templates_of_each_kind_get_every_default() {
    let bare = || json!({ "containers": [{ "name": "web" }] });
    for (kind, object, pointer) in [
        ("Deployment", json!({ "spec": { "template": { "spec": bare() } } }), "/spec/template/spec"),
        ("Job", json!({ "spec": { "template": { "spec": bare() } } }), "/spec/template/spec"),
        (
            "CronJob",
            json!({ "spec": { "jobTemplate": { "spec": { "template": { "spec": bare() } } } } }),
            "/spec/jobTemplate/spec/template/spec",
        ),
    ] {
        let object = ask(kind, "CREATE", &object, json!({})).mutated_object.expect(kind);
        let mut expected = safe_pod();
        expected["automountServiceAccountToken"] = json!(false);
        assert_eq!(object.pointer(pointer), Some(&expected), "{kind}");
    }
}

#[test]
fn pods_that_cannot_be_updated_are_not_changed() {
    let bare = json!({ "containers": [{ "name": "web" }] });
    for (kind, object) in [
        ("Pod", json!({ "metadata": {}, "spec": bare })),
        ("Job", json!({ "metadata": {}, "spec": { "template": { "spec": bare } } })),
    ] {
        assert_eq!(ask(kind, "UPDATE", &object, json!({})), Response::accept(), "{kind}");
    }
    let replica_set = json!({ "metadata": {}, "spec": { "template": { "spec": bare } } });
    assert_eq!(ask("ReplicaSet", "CREATE", &replica_set, json!({})), Response::accept());
    assert_eq!(ask("Pod", "DELETE", &Value::Null, json!({})), Response::accept());
}

#[test]
fn missing_labels_are_added() {
    let object = |labels: Value| json!({ "metadata": { "name": "a", "labels": labels }, "spec": safe_pod() });
    let settings = || json!({ "labels": { "example.com/defaults": "v1", "team": "none" } });
    for (labels, expected) in [
        (Value::Null, Some(json!({ "example.com/defaults": "v1", "team": "none" }))),
        (json!({ "team": "pay" }), Some(json!({ "example.com/defaults": "v1", "team": "pay" }))),
        (json!({ "example.com/defaults": "own", "team": "pay" }), None),
    ] {
        let mutated = ask("Pod", "CREATE", &object(labels), settings()).mutated_object;
        assert_eq!(mutated.map(|it| it["metadata"]["labels"].clone()), expected);
    }
}

#[test]
fn invalid_settings_have_a_message() {
    for (settings, expected) in [
        (json!({}), r#"{"valid":true}"#),
        (json!({ "labels": { "example.com/team": "a", "empty": "" } }), r#"{"valid":true}"#),
        (json!({ "labels": { "a b": "c" } }), "is no label key"),
        (json!({ "labels": { "Example.com/team": "c" } }), "is no label key"),
        (json!({ "labels": { "team": "a b" } }), "is no label value"),
        (json!({ "label": {} }), "unknown field `label`, expected `labels`"),
    ] {
        let answer = guest::answer::<SafeDefaults>(b"validate_settings", settings.to_string().as_bytes());
        let answer = String::from_utf8(answer.expect("an answer")).expect("JSON");
        assert!(answer.contains(expected), "{answer}");
    }
}
