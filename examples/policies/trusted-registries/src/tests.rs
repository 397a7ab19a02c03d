use serde_json::{Value, json};

use super::*;

fn ask(object: &Value, old_object: &Value, settings: Value) -> Response {
    let request = serde_json::from_value(json!({ "object": object, "oldObject": old_object })).expect("a request");
    TrustedRegistries::validate(request, &serde_json::from_value(settings).expect("settings"))
}

fn settings() -> Value {
    json!({ "registries": ["registry.example.com", "docker.io/library"] })
}

fn pod_spec(image: &str) -> Value {
    json!({ "containers": [{ "name": "web", "image": image }] })
}

#[test]
fn images_are_found_in_every_kind_that_has_a_pod() {
    for (kind, object) in [
        ("Pod", json!({ "spec": pod_spec("evil.example/a:1") })),
        ("Deployment", json!({ "spec": { "replicas": 2, "template": { "spec": pod_spec("evil.example/a:1") } } })),
        (
            "CronJob",
            json!({ "spec": { "jobTemplate": { "spec": { "template": { "spec": pod_spec("evil.example/a:1") } } } } }),
        ),
        ("PodTemplate", json!({ "template": { "spec": pod_spec("evil.example/a:1") } })),
    ] {
        let message = ask(&object, &Value::Null, settings()).message.expect(kind);
        assert_eq!(
            message,
            "container \"web\": image \"evil.example/a:1\" is evil.example/a, which is in none of the allowed \
             registries (registry.example.com, docker.io/library)",
            "{kind}"
        );
    }
}

#[test]
fn every_image_of_a_pod_is_checked() {
    let object = json!({ "spec": {
        "initContainers": [{ "name": "init", "image": "evil.example/a:1" }],
        "containers": [{ "name": "web", "image": "registry.example.com/a:1" }, { "name": "none" }],
        "ephemeralContainers": [{ "name": "debug", "image": "busybox" }],
        "volumes": [
            { "name": "data", "emptyDir": {} },
            { "name": "model", "image": { "reference": "evil.example/model:1" } },
        ],
    }});
    let message = ask(&object, &Value::Null, settings()).message.expect("a denial");
    let owners: Vec<_> = message.split("; ").filter_map(|problem| problem.split(": ").next()).collect();
    assert_eq!(
        owners,
        ["init container \"init\"", "container \"none\"", "ephemeral container \"debug\"", "volume \"model\""]
    );
}

#[test]
fn latest_is_denied_unless_the_settings_allow_it() {
    let latest = || json!({ "spec": pod_spec("nginx") });
    let message = ask(&latest(), &Value::Null, settings()).message.expect("a denial");
    assert_eq!(
        message,
        "container \"web\": image \"nginx\" names no version: give it a tag other than \"latest\", or a digest"
    );
    let lenient = json!({ "registries": ["docker.io"], "allowLatest": true });
    assert_eq!(ask(&latest(), &Value::Null, lenient), Response::accept());
}

#[test]
fn an_image_from_before_the_update_is_not_checked() {
    let old = || json!({ "spec": pod_spec("evil.example/a:1") });
    assert_eq!(ask(&old(), &old(), settings()), Response::accept());
    assert!(!ask(&json!({ "spec": pod_spec("evil.example/a:2") }), &old(), settings()).accepted);
}

#[test]
fn a_deletion_is_accepted() {
    assert_eq!(ask(&Value::Null, &json!({ "spec": pod_spec("evil.example/a:1") }), settings()), Response::accept());
}

#[test]
fn null_lists_are_empty_lists() {
    let object = json!({ "spec": { "containers": null, "volumes": null } });
    assert_eq!(ask(&object, &Value::Null, settings()), Response::accept());
}

#[test]
fn invalid_settings_have_a_message() {
    for (settings, expected) in [
        (json!({ "registries": ["ghcr.io"] }), r#"{"valid":true}"#),
        (json!({}), "missing field `registries`"),
        (json!({ "registries": [] }), "registries is empty"),
        (json!({ "registries": ["https://ghcr.io"] }), "has a scheme"),
        (json!({ "registries": ["ghcr.io"], "allow_latest": true }), "unknown field `allow_latest`, expected"),
    ] {
        let answer = guest::answer::<TrustedRegistries>(b"validate_settings", settings.to_string().as_bytes());
        let answer = String::from_utf8(answer.expect("an answer")).expect("JSON");
        assert!(answer.contains(expected), "{answer}");
    }
}
