use super::*;
use crate::request_policies::test_policy::stored;

fn spec(request: &Value) -> Value {
    json!({"program": {"rego": {"source": "package p\nmain := {}", "dialect": "Request"}}, "request": request})
}

fn resource() -> Resource {
    Resource::of(&stored("cluster.a", &spec(&json!({"displayName": "A", "selector": {"matchLabels": {"env": "dev"}}}))))
        .unwrap()
}

fn read(body: &Value) -> Result<Content> {
    Content::read(body.as_object().unwrap().clone())
}

#[test]
fn a_policy_is_shown_if_this_form_has_all_of_its_criteria() {
    let other_program = json!({"program": {"cel": {"validations": [], "result": "{}"}}, "request": {}});
    let admission = json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}});
    let expressions = json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}});
    for (id, spec, expected) in [
        ("cluster.a", spec(&json!({})), Some("GLOBAL")),
        ("cluster.a", spec(&json!({"level": "User"})), Some("USER")),
        ("cluster.0b5a1c0e-1b2c-4d3e-8f90-a1b2c3d4e5f6", spec(&json!({})), Some("GLOBAL")),
        ("cluster.a", spec(&json!({"user": "ana"})), None),
        ("cluster.a", spec(&json!({"serviceTypes": ["vm"]})), None),
        ("cluster.a", spec(&expressions), None),
        ("cluster.a.b", spec(&json!({})), None),
        ("ns.team.a", spec(&json!({"level": "User"})), None),
        ("cluster.a", other_program, None),
        ("cluster.a", admission, None),
    ] {
        let shown = Resource::of(&stored(id, &spec)).map(|resource| resource.to_json());
        assert_eq!(shown.as_ref().map(|shown| shown["policy_type"].as_str().unwrap()), expected, "{id} {spec}");
    }
}

#[test]
fn a_resource_has_the_published_fields() {
    let expected = json!({
        "path": "policies/a", "id": "a", "display_name": "A", "policy_type": "GLOBAL", "label_selector": {"env": "dev"},
        "priority": 500, "rego_code": "package p\nmain := {}", "enabled": true,
        "create_time": "2026-11-20T09:14:07Z", "update_time": "2026-11-21T09:14:07Z",
    });
    assert_eq!(resource().to_json(), expected);
}

#[test]
fn an_invalid_field_is_refused_by_its_name() {
    let valid = json!({"display_name": "政策 🔒", "policy_type": "USER", "rego_code": "package p"});
    let content = read(&valid).unwrap();
    assert_eq!((content.priority, content.enabled, content.policy_type), (500, true, PolicyType::User));
    for (field, value) in [
        ("display_name", json!(null)),
        ("display_name", json!(" \t")),
        ("display_name", json!("x".repeat(256))),
        ("display_name", json!(1)),
        ("description", json!("x".repeat(2049))),
        ("policy_type", json!(null)),
        ("policy_type", json!("TENANT")),
        ("priority", json!(0)),
        ("priority", json!(1001)),
        ("priority", json!(-1)),
        ("priority", json!("1")),
        ("rego_code", json!("")),
        ("rego_code", json!(" \n")),
        ("rego_code", json!("x".repeat(65_537))),
        ("label_selector", json!({"a": 1})),
        ("enabled", json!("yes")),
        ("regoCode", json!("package p")),
    ] {
        let mut body = valid.clone();
        body[field] = value.clone();
        let error = read(&body).unwrap_err();
        assert!(error.violations[0].field.starts_with(field), "{field} {value}: {error}");
        assert_eq!(error.http(), 400);
    }
    for (field, value) in [
        ("display_name", json!("x".repeat(255))),
        ("description", json!("é".repeat(2048))),
        ("priority", json!(1000)),
        ("rego_code", json!("x".repeat(65_536))),
        // The server sets these fields, and ignores their values (AIP-203).
        ("id", json!("other")),
        ("create_time", json!("2026-11-20T09:14:07Z")),
    ] {
        let mut body = valid.clone();
        body[field] = value;
        assert!(read(&body).is_ok(), "{field}");
    }
}

#[test]
fn a_merge_patch_changes_the_fields_that_it_has() {
    let before = resource();
    for (patch, expected) in [
        (json!({}), json!({})),
        (json!({"display_name": "B", "priority": 7}), json!({"display_name": "B", "priority": 7})),
        (json!({"label_selector": {"team": "x"}}), json!({"label_selector": {"env": "dev", "team": "x"}})),
        (json!({"label_selector": {"env": null}}), json!({"label_selector": null})),
        (json!({"label_selector": null}), json!({"label_selector": null})),
        (json!({"description": "d", "enabled": false}), json!({"description": "d", "enabled": false})),
        (json!({"priority": null, "enabled": null}), json!({"priority": 500, "enabled": true})),
        // The immutable fields with their values, and one of them in another time zone.
        (
            json!({
                "id": "a", "path": "policies/a", "policy_type": "GLOBAL", "create_time": "2026-11-20T10:14:07+01:00",
                "update_time": "2026-11-21T09:14:07.000Z",
            }),
            json!({}),
        ),
    ] {
        let content = before.patched(&patch).unwrap();
        let mut wanted = before.to_json();
        for (field, value) in expected.as_object().unwrap() {
            wanted[field] = value.clone();
        }
        assert_eq!(Resource { content, ..before.clone() }.to_json(), without_nulls(wanted), "{patch}");
    }
}

#[test]
fn a_patch_that_changes_an_immutable_field_or_removes_a_required_one_is_refused() {
    for (field, value) in [
        ("id", json!("b")),
        ("path", json!("policies/b")),
        ("policy_type", json!("USER")),
        ("policy_type", json!(null)),
        ("create_time", json!("2026-11-20T09:14:08Z")),
        ("create_time", json!("yesterday")),
        ("update_time", json!("2026-11-20T09:14:07Z")),
        ("display_name", json!(null)),
        ("rego_code", json!(" ")),
        ("label_selector", json!("env=dev")),
    ] {
        let error = resource().patched(&json!({field: value})).unwrap_err();
        assert!(error.violations[0].field.starts_with(field), "{field}: {error}");
    }
}

#[test]
fn a_change_keeps_the_parts_of_the_spec_that_this_form_does_not_show() {
    let mut spec = spec(&json!({"priority": 500}));
    spec["timeoutEvalSeconds"] = json!(3);
    let stored = stored("cluster.a", &spec);
    let before = Resource::of(&stored).unwrap();
    let unchanged = before.patched(&json!({"priority": 500})).unwrap().to_changed_spec(&before, &stored.spec);
    assert_eq!(unchanged, stored.spec, "the default of the display name is not written");
    let changed = before.patched(&json!({"rego_code": "package q\nmain := {}", "display_name": "B", "enabled": false}));
    let changed = json!(changed.unwrap().to_changed_spec(&before, &stored.spec));
    assert_eq!((&changed["timeoutEvalSeconds"], &changed["enabled"]), (&json!(3), &json!(false)));
    assert_eq!(changed["request"]["displayName"], "B");
    assert_eq!(changed["program"], json!({"rego": {"source": "package q\nmain := {}", "dialect": "Request"}}));
}

#[test]
fn a_new_policy_names_the_rule_of_the_published_engine() {
    let body =
        json!({"display_name": "A", "policy_type": "USER", "rego_code": "package p", "label_selector": {"a": "b"}});
    let spec = read(&body).unwrap().to_new_spec().unwrap();
    let program = json!({"rego": {"source": "package p", "dialect": "Request", "entrypoint": "main"}});
    assert_eq!(json!(spec)["program"], program);
    let request =
        json!({"displayName": "A", "selector": {"matchLabels": {"a": "b"}}, "priority": 500, "level": "User"});
    assert_eq!(json!(spec)["request"], request);
}

#[test]
fn ids_have_the_form_of_aep_122() {
    for id in ["a", "my-policy", "policy-123", &"a".repeat(63)] {
        assert!(is_client_id(id) && is_id(id), "{id}");
    }
    for id in [
        "Invalid ID!",
        "id with spaces",
        "id@special",
        "test_policy",
        "policy.v1",
        "test-policy-",
        "",
        "é",
        &"a".repeat(64),
    ] {
        assert!(!is_client_id(id) && !is_id(id), "{id}");
    }
    let uuid = "0b5a1c0e-1b2c-4d3e-8f90-a1b2c3d4e5f6";
    assert!(is_id(uuid) && !is_client_id(uuid) && !is_client_id("123-test-policy"));
}
